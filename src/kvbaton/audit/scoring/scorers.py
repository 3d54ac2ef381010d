"""Scorers by name: the built-in ones, and ``module:function`` of the user's own."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType

from kvbaton.audit.scoring.judging import Scorer
from kvbaton.audit.scoring.own import own_scorer
from kvbaton.errors import InputError

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "exact": "kvbaton.audit.scoring.exact:exact",
        "contains": "kvbaton.audit.scoring.contains:contains",
        "f1": "kvbaton.audit.scoring.f1:f1",
        "rouge-l": "kvbaton.audit.scoring.rouge:rouge_l",
        "code": "kvbaton.audit.scoring.code:code",
    }
)
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def known_scorers() -> tuple[str, ...]:
    """Names of the built-in scorers."""
    return tuple(BUILT_IN)


def is_scorer(name: str) -> bool:
    """Whether a name is that of a built-in scorer, or has the form ``module:function``."""
    return name in BUILT_IN or _OWN.fullmatch(name) is not None


def scorer(name: str) -> Scorer:
    """The scorer of a name; one of the user's own raises ``InputError`` where it fails.

    Raises
    ------
    InputError
        There is none of that name, or its module cannot be imported.
    """
    target = BUILT_IN.get(name)
    if target is None:
        if not is_scorer(name):
            raise InputError(
                f"the scorer {name[:80]!r} is not known",
                hint=f"known: {', '.join(BUILT_IN)}, or module:function",
            )
        return own_scorer(name)
    module, _, function = target.partition(":")
    found: Scorer = getattr(importlib.import_module(module), function)
    return found
