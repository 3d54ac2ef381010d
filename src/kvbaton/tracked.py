"""What an agent does with the ledger besides handing off and taking."""

from __future__ import annotations

import re
from collections.abc import Callable

from kvbaton.conversation import Conversation, Turn
from kvbaton.errors import InputError
from kvbaton.following import Following
from kvbaton.lineage.records import Node
from kvbaton.sending import node_of
from kvbaton.types import Baton, BatonRef

_ID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}|artefact-[0-9a-f]{32}")
"""Ids of batons, of receipts, and of artefacts."""


class Tracked:
    """An agent whose contexts can be followed; see ``Agent``."""

    following: Following
    conversation: Conversation | None

    def artefact(self, label: str, *sources: Turn | Baton | BatonRef | str) -> str:
        """Note something that was made from turns, batons or other artefacts, such as a file: it
        is marked when one of them becomes stale.

        Parameters
        ----------
        label
            What it is called where it is listed, such as a path.
        sources
            What it was made from; by default the agent's last answer.

        Returns
        -------
        str
            Its id, for further ones that are made from it.

        Raises
        ------
        InputError
            There is nothing that it was made from, or the label cannot be used.
        LedgerError
            There is no ledger, or the note cannot be kept.
        """
        made_from = [self._node_of(one) for one in sources]
        if not sources and self.conversation is not None:
            made_from = list(self.conversation.built_on)
        if not made_from:
            raise InputError("there is nothing that it was made from", hint="name a turn")
        return self.following.note_artefact(label, made_from)

    def head(self, ref: str) -> BatonRef:
        """The baton that a ref stands for now: ``coder.take(coder.head("plan"), "...")``.

        Raises
        ------
        UnknownRef
            It has not been moved yet.
        LedgerError
            There is no ledger, or it cannot be used.
        """
        return self.following.head(ref)[1]

    def _node_of(self, source: Turn | Baton | BatonRef | str) -> str:
        """The id under which the ledger knows something; a text that is no whole id is looked up.

        Raises
        ------
        UnknownNode
            Nothing has such an id.
        LedgerError
            It has to be looked up, and there is no ledger, or it cannot be used.
        """
        if not isinstance(source, str) or _ID.fullmatch(source):
            return node_of(source)
        return self.following.look_up(source)

    def when_stale(self, told: Callable[[Node], None]) -> Callable[[], None]:
        """Be told, once, when what the agent's conversation was made from becomes stale, whoever
        has changed it, in whichever process.

        Parameters
        ----------
        told
            Gets the node with its mark; it is called in a thread of its own, and must not raise.

        Returns
        -------
        callable
            Lets go of it: nothing is told any more.

        Raises
        ------
        InputError
            There is no conversation yet.
        LedgerError
            There is no ledger.
        """
        if self.conversation is None:
            raise InputError("the agent has no conversation yet")
        return self.following.when_stale(self.conversation.built_on, told)
