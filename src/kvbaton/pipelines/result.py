"""What a pipeline's run was: one turn per agent, and totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbaton.types import JSON, Reason, Receipt, common_prefix


@dataclass(frozen=True, slots=True)
class TextTurn:
    """The same turn by text.

    ``measured`` is False where both routes are one and the same run: an agent that takes no
    baton and reuses nothing.
    """

    output: str
    ids: tuple[int, ...]
    ttft_s: float
    wall_s: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part: the token, and the character of the text."""

    token: int
    character: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One agent's turn.

    Parameters
    ----------
    receipt
        The evidence of the run or take.
    output, ids
        The answer, and all ids that were sampled.
    reasons
        Why the route is not ``baton``, or not wholly.
    bytes_deduplicated
        Bytes of the baton's segments that its hand-off found in the store already.
    handoff_s
        Seconds that the sender spent on this baton; 0 where none was taken.
    turn_s
        Seconds from the call to the last token.
    text
        The same turn by text; None unless the routes are compared.
    """

    receipt: Receipt
    output: str
    ids: tuple[int, ...]
    reasons: tuple[Reason, ...]
    bytes_deduplicated: int
    handoff_s: float
    turn_s: float
    text: TextTurn | None = None

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.receipt.agent

    @property
    def takes_baton(self) -> bool:
        """Whether the agent took a baton, by whatever route."""
        return self.receipt.baton is not None

    @property
    def ttft_s(self) -> float:
        """Seconds from the call to the first token."""
        return self.receipt.seconds["ttft"]

    @property
    def wall_s(self) -> float:
        """Seconds of hand-off and turn."""
        return self.handoff_s + self.turn_s

    @property
    def difference(self) -> Difference | None:
        """Where the answers by both routes part; None where they are the same, or not compared."""
        if self.text is None or self.text.ids == self.ids:
            return None
        character = _common(self.output, self.text.output)
        return Difference(common_prefix(self.ids, self.text.ids), character)

    def to_json(self) -> JSON:
        """One entry of ``turns``; what was not compared is null."""
        receipt, text = self.receipt, self.text
        return {
            "agent": self.agent,
            "mode": receipt.mode.value,
            "route": receipt.route.value,
            "reasons": [reason.to_json() for reason in self.reasons],
            "context_tokens": receipt.context_tokens,
            "reused_tokens": receipt.reused_tokens,
            "computed_tokens": receipt.computed_tokens,
            "bytes_moved": receipt.bytes_moved,
            "bytes_deduplicated": self.bytes_deduplicated,
            "ttft_s": self.ttft_s,
            "text_ttft_s": text.ttft_s if text else None,
            "output": self.output,
            "text_output": text.output if text else None,
            "fidelity": receipt.fidelity.to_json(),
            **({"shadow": dict(receipt.shadow)} if receipt.shadow else {}),
        }


def _common(a: str, b: str) -> int:
    """Characters that two texts have in common at the beginning."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A whole run.  Loading the model is in no figure.

    ``not_run`` are the agents that were left out because the run was asked to end early.
    """

    pipeline: str
    model: str
    dtype: str
    turns: tuple[TurnResult, ...]
    not_run: tuple[str, ...] = ()

    @property
    def takers(self) -> Sequence[TurnResult]:
        """Turns that took a baton."""
        return [turn for turn in self.turns if turn.takes_baton]

    @property
    def wall_s(self) -> float:
        """Seconds of all hand-offs and turns."""
        return sum(turn.wall_s for turn in self.turns)

    @property
    def text_wall_s(self) -> float | None:
        """Seconds of all turns by text; None unless the routes were compared."""
        compared = [turn.text.wall_s for turn in self.turns if turn.text is not None]
        return sum(compared) if len(compared) == len(self.turns) else None

    @property
    def speedup(self) -> float | None:
        """Wall seconds by text over wall seconds of this run, first prefill included in both."""
        return self.text_wall_s / self.wall_s if self.text_wall_s is not None else None

    @property
    def ttft_speedup(self) -> float | None:
        """Sum of the takers' seconds to the first token by text, over that of this run."""
        pairs = [(turn.text.ttft_s, turn.ttft_s) for turn in self.takers if turn.text is not None]
        if not pairs:
            return None
        return sum(by_text for by_text, _ in pairs) / sum(here for _, here in pairs)

    def to_json(self) -> JSON:
        """The whole run as one JSON object."""
        return {
            "pipeline": self.pipeline,
            "model": self.model,
            "dtype": self.dtype,
            "turns": [turn.to_json() for turn in self.turns],
            "totals": {
                "wall_s": self.wall_s,
                "text_wall_s": self.text_wall_s,
                "speedup": self.speedup,
                "ttft_speedup": self.ttft_speedup,
            },
            **({"not_run": list(self.not_run)} if self.not_run else {}),
        }
