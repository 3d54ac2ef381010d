"""Trials of one unit: timed ones, and those that say how good the answers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvbaton.audit.case import Case, shared_tokens
from kvbaton.audit.flops import counted_flops
from kvbaton.audit.load import Load, Meter
from kvbaton.audit.scoring import scorer
from kvbaton.audit.tasks.schema import Question
from kvbaton.audit.treatments import Treatment
from kvbaton.bench.fidelity.answers import forced_logits, greedy_answers
from kvbaton.bench.memory import peak_extra_bytes
from kvbaton.errors import UnsupportedLayout
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.conversation import Turn

FORCED_TOKENS = 32
"""At most so many positions of an answer are compared."""
FLOOR_CHUNK_TOKENS = 256
"""The noise floor is that of a prefill in chunks of so many tokens, or of a quarter of it."""

_REPEATED = 4
"""An answer that begins with so many characters of what opens it repeats them."""
_AT_ONCE = 16
"""Positions whose distributions are in memory in float64 at once."""


@dataclass(frozen=True)
class Behind:
    """A receiver's cache of all that its questions have in common, and what asks each.

    ``asked`` are the ids of each question behind the cache, with the words that open its answer.
    """

    cache: Any
    asked: tuple[tuple[int, ...], ...]
    turn: Turn


@dataclass(frozen=True)
class Reference:
    """What the receiver says by text.

    ``forced`` are the answers that are put into its mouth, ``logits`` ``[positions, vocab]``
    float32 what it says at each of their positions.
    """

    forced: tuple[tuple[int, ...], ...]
    logits: tuple[torch.Tensor, ...]


class Trials:
    """Runs the trials of one case.

    Parameters
    ----------
    case
        The unit with its sender's turn.
    fixed_tokens
        For which answers are timed.
    meter
        Counts the seconds of the work itself.
    counted
        Count floating point operations; it slows every pass of the quality trials down.
    """

    def __init__(
        self, case: Case, *, fixed_tokens: int, meter: Meter, counted: bool = True
    ) -> None:
        self.case, self.engine, self.fixed_tokens = case, case.engine, fixed_tokens
        self._meter, self._counted = meter, counted
        self._references: dict[str, Reference] = {}

    # -- timed ----------------------------------------------------------------------------------

    def timed(self, treatment: Treatment, repeat: int, position: int) -> JSON:
        """One answer, timed; the repeats ask one question after the other.

        Parameters
        ----------
        position
            Place of the trial in the order of its block.
        """
        case, questions = self.case, self.case.unit.questions
        sent = case.sent(treatment)
        asked = questions[repeat % len(questions)]
        self.engine.wait_for_device()
        load = Load()
        with self._meter.work():
            turn = case.take(
                treatment, asked.text, max_new_tokens=self.fixed_tokens, ignore_eos=True
            )
            self.engine.wait_for_device()
        receipt = turn.receipt
        fixed_s = receipt.seconds["total"]
        return {
            "kind": "timed",
            "unit": case.unit.id,
            "treatment": treatment.name,
            "repeat": repeat,
            "position": position,
            "ttft_s": receipt.seconds["ttft"],
            "fixed_s": fixed_s,
            "fixed_tokens": len(turn.ids),
            "e2e_s": self.before_s(treatment, sent.seconds) + fixed_s,
            "computed_tokens": receipt.computed_tokens,
            "reused_tokens": receipt.reused_tokens,
            "bytes_moved": receipt.bytes_moved,
            "route": receipt.route.value,
            "reasons": [reason.code.value for reason in receipt.reasons],
            **load.taken(),
            "receipt": receipt.to_json(),
        }

    def before_s(self, treatment: Treatment, hand_off_s: float) -> float:
        """Seconds from the sender's start to when the receiver can begin."""
        sender, name = self.case.sender_s, treatment.name
        if name == "Z0":
            return 0.0  # the receiver reads the prompt itself
        if name == "Z":
            return sender["prefill_s"] + hand_off_s
        moved_s = self.case.tokenize_s if treatment.reference == name else hand_off_s
        return sender["prefill_s"] + sender["decode_s"] + moved_s

    # -- quality --------------------------------------------------------------------------------

    def quality(self, treatment: Treatment, reference: Treatment) -> JSON:
        """All answers of a unit, judged and compared with those by text; not timed.

        Raises
        ------
        InputError
            A scorer of the user's own has failed.
        KvbatonError
            The treatment is impossible for this model.
        """
        with self._meter.work():
            self.case.sent(treatment)  # what making it takes is not the receiver's
            truth = self.reference(reference)
            behind, flops, peak_bytes = self._measured(treatment)
            said = greedy_answers(
                self.engine,
                behind.cache,
                behind.asked,
                new_tokens=max(q.max_new_tokens for q in self.case.unit.questions),
            )
            logits = self._forced(behind, truth.forced)
        answers = [
            self._judged(question, ids) | compared(mine, theirs)
            for question, ids, mine, theirs in zip(
                self.case.unit.questions, said, logits, truth.logits, strict=True
            )
        ]
        receipt = behind.turn.receipt
        return {
            "kind": "quality",
            "unit": self.case.unit.id,
            "treatment": treatment.name,
            "route": receipt.route.value,
            "flops": flops,
            "peak_bytes": peak_bytes,
            "answers": answers,
            "receipt": receipt.to_json(),
        }

    def reference(self, treatment: Treatment) -> Reference:
        """What the receiver says by text; computed once per case."""
        if treatment.name not in self._references:
            behind = self._behind(treatment)
            forced = self._answers_to_force(behind)
            logits = tuple(self._forced(behind, forced))
            self._references[treatment.name] = Reference(forced, logits)
        return self._references[treatment.name]

    def floor(self, treatment: Treatment) -> JSON:
        """How far two prefills of the same ids lie apart that differ in nothing but chunks."""
        case = self.case
        prompts = case.prompts(treatment)
        shared = shared_tokens(prompts)
        chunk = max(1, min(FLOOR_CHUNK_TOKENS, shared // 4))
        with self._meter.work():
            truth = self.reference(treatment)
            cache = self.engine.new_cache(shared + self.engine.default_room)
            for first in range(0, shared, chunk):
                self.engine.forward(cache, prompts[0].ids[first : min(first + chunk, shared)])
            behind = Behind(cache, self._asked(prompts, shared), case.turn)
            logits = self._forced(behind, truth.forced)
        found = [compared(mine, theirs) for mine, theirs in zip(logits, truth.logits, strict=True)]
        positions = sum(one["positions"] for one in found)
        return {
            "kind": "floor",
            "unit": case.unit.id,
            "treatment": treatment.name,
            "chunk_tokens": chunk,
            "kl": sum(one["kl"] * one["positions"] for one in found) / positions,
            "flips": sum(one["flips"] for one in found),
            "positions": positions,
        }

    def _measured(self, treatment: Treatment) -> tuple[Behind, int | None, int | None]:
        """A cache to ask behind, with the operations and the memory that it took."""
        kept: list[tuple[Behind, int | None]] = []

        def work() -> None:
            if self._counted:
                kept.append(counted_flops(lambda: self._behind(treatment)))
            else:
                kept.append((self._behind(treatment), None))

        peak_bytes = peak_extra_bytes(work, self.engine.device)
        behind, flops = kept[0]
        return behind, flops, peak_bytes

    def _behind(self, treatment: Treatment) -> Behind:
        if self.engine.layout.window_layers:
            raise UnsupportedLayout(
                "questions side by side need full attention in all layers",
                hint="time this model with: kvbaton bench ttft",
            )
        case = self.case
        prompts = case.prompts(treatment)
        turn = case.take(treatment, case.unit.questions[0].text, max_new_tokens=1)
        cache = turn.conversation.cache
        shared = shared_tokens(prompts)
        cache.take_back(shared)
        return Behind(cache, self._asked(prompts, shared), turn)

    def _asked(self, prompts: Sequence[Any], shared: int) -> tuple[tuple[int, ...], ...]:
        return tuple(
            (*prompt.ids[shared:], *self._encode(question.opening))
            for prompt, question in zip(prompts, self.case.unit.questions, strict=True)
        )

    def _answers_to_force(self, behind: Behind) -> tuple[tuple[int, ...], ...]:
        """The right answer to each question; what the model says by text where none is known."""
        questions = self.case.unit.questions
        said: Sequence[Sequence[int]] = [()] * len(questions)
        if not all(question.answers for question in questions):
            said = greedy_answers(self.engine, behind.cache, behind.asked, new_tokens=FORCED_TOKENS)
        nothing = (min(self.engine.chat.stop_ids),)
        return tuple(
            ((self._right(question) if question.answers else tuple(ids)) or nothing)[:FORCED_TOKENS]
            for question, ids in zip(questions, said, strict=True)
        )

    def _right(self, question: Question) -> tuple[int, ...]:
        return self._encode(going_on(question.opening, question.answers[0]))

    def _forced(self, behind: Behind, forced: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Logits at the positions that predict each token of the answers."""
        texts = [(*ids, *answer[:-1]) for ids, answer in zip(behind.asked, forced, strict=True)]
        return forced_logits(
            self.engine, behind.cache, texts, positions=[len(answer) for answer in forced]
        )

    def _judged(self, question: Question, ids: tuple[int, ...]) -> JSON:
        ids = ids[: question.max_new_tokens]
        text = self.engine.chat.text_of(ids)
        judged = scorer(question.scorer)(question, text)
        return {
            "question": question.id,
            "text": text,
            "score": judged.score,
            "right": judged.right,
            "new_tokens": len(ids),
        }

    def _encode(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        return tuple(self.engine.tokenizer.encode(text, add_special_tokens=False))


def going_on(opening: str, answer: str) -> str:
    """An answer as it goes on behind the words that open it.

    What the opening has said already is left out; a space comes between words.
    """
    said = next(
        (n for n in range(min(len(opening), len(answer)), 0, -1) if opening.endswith(answer[:n])), 0
    )
    if said >= _REPEATED:
        return answer[said:]
    last = opening[-1:]
    words = last.isascii() and (last.isalnum() or last in tuple(".:;!?)"))
    return f" {answer}" if words else answer


def compared(mine: torch.Tensor, theirs: torch.Tensor) -> JSON:
    """How far what is said lies from what is said by text.

    Parameters
    ----------
    mine, theirs
        Logits ``[positions, vocab]`` float32; ``theirs`` are those by text.

    Returns
    -------
    dict
        ``{"kl", "kl_max", "positions", "flips"}``: KL(text || this) in nats, mean and largest over
        the positions, and at how many of them another token is the likeliest.
    """
    kl: list[float] = []
    for one, other in zip(mine.split(_AT_ONCE), theirs.split(_AT_ONCE), strict=True):
        truth, found = other.double().log_softmax(-1), one.double().log_softmax(-1)
        kl.extend((truth.exp() * (truth - found)).sum(-1).clamp(min=0).tolist())
    flips = int((mine.argmax(-1) != theirs.argmax(-1)).sum())
    return {"kl": sum(kl) / len(kl), "kl_max": max(kl), "positions": len(kl), "flips": flips}
