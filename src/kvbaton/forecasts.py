"""Forecasts: what measured speeds say of a take, kept up to date by the receipts of real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvbaton.errors import KvbatonError
from kvbaton.policy.costs import predictions_for
from kvbaton.policy.gates import TakeContext
from kvbaton.policy.learning import Learner
from kvbaton.policy.output_length import Length, foresee
from kvbaton.policy.routes import TEXT, Prediction, fastest
from kvbaton.policy.speed_files import Kept, load_speeds, speeds_file, store_speeds
from kvbaton.types import JSON, Manifest, Mode, Reason, ReasonCode, Receipt

SAVE_EVERY_S = 10.0
"""What was learnt is kept at most that often."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What is expected of a hand-off before its sender has started.

    Parameters
    ----------
    length
        Tokens of the sender's answer.
    predictions
        Seconds to the receiver's first token by each route.
    best
        Name of the route that is expected to be fastest; text where it is as fast.
    """

    length: Length
    predictions: tuple[Prediction, ...]
    best: str

    def to_json(self) -> JSON:
        """``{"tokens", "low", "high", "predictions", "best"}``."""
        return {
            "tokens": self.length.tokens,
            "low": self.length.low,
            "high": self.length.high,
            "predictions": [one.to_json() for one in self.predictions],
            "best": self.best,
        }


class Forecasts:
    """What is predicted of one function on this host; nothing where nothing was measured.

    Parameters
    ----------
    data_dir
        Where ``kvbaton policy calibrate`` keeps what it has measured; what is learnt is added.
    function
        Digest of the receiver's function.
    """

    def __init__(
        self, data_dir: Path, function: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._data_dir, self._function, self._clock = data_dir, function, clock
        self._lock = threading.Lock()
        self._learner: Learner | None = None
        self._stamp: tuple[int, int] | None = None
        self._looked = False
        self._saved_at = -SAVE_EVERY_S
        self._trouble: KvbatonError | None = None

    @property
    def learner(self) -> Learner | None:
        """What is known now; None where nothing was measured on this host."""
        with self._lock:
            self._refresh()
            return self._learner

    def predict(
        self, manifest: Manifest, context: TakeContext, store: str
    ) -> tuple[Prediction, ...]:
        """Text, and the baton's cache; see ``policy.costs.predictions_for``."""
        learner = self.learner
        if learner is None:
            return ()
        return predictions_for(learner.speeds, manifest, context, store=store, load=learner.load)

    def seen(self, receipt: Receipt, store: str) -> None:
        """Learn from an answer whose baton lay in ``store``, and keep that now and then.

        That it cannot be kept is told by the next receipt.
        """
        learner = self.learner
        if learner is None:
            return
        learner.seen(receipt.to_json(), store=store)
        with self._lock:
            if self._clock() - self._saved_at < SAVE_EVERY_S:
                return
            self._saved_at = self._clock()
            try:
                store_speeds(Kept.of(learner), self._data_dir)
            except KvbatonError as error:
                self._trouble = error
            else:
                self._stamp = self._look()

    def foresee(
        self,
        input_tokens: int,
        *,
        agent: str,
        mode: Mode = Mode.CONTINUE,
        at_most: int,
        new_tokens: int,
        store: str,
    ) -> Foresight | None:
        """What to expect of handing a context off before its sender has answered.

        Parameters
        ----------
        input_tokens
            That the sender reads.
        agent, mode
            Whose answers, in which mode: lengths are learnt for each.
        at_most
            Tokens that the sender may answer with.
        new_tokens
            That the receiver will add.
        store
            URL of the store that the baton will lie in.

        Returns
        -------
        Foresight or None
            None where nothing was measured, or nothing is known of such answers.
        """
        learner = self.learner
        if learner is None:
            return None
        length = learner.lengths.predict(
            input_tokens, agent=agent, mode=mode.value, at_most=at_most
        )
        if length is None:
            return None
        predictions = foresee(
            learner.speeds,
            length,
            input_tokens=input_tokens,
            new_tokens=new_tokens,
            store=store,
            load=learner.load,
        )
        best = fastest(predictions, [one.route for one in predictions])
        return Foresight(length, predictions, TEXT if best is None else best.route)

    def troubles(self) -> tuple[Reason, ...]:
        """A warning where what was measured cannot be used, or what was learnt not be kept."""
        with self._lock:
            self._refresh()
            trouble = self._trouble
        if trouble is None:
            return ()
        hint = f"; {trouble.hint}" if trouble.hint else ""
        return (Reason(ReasonCode.NOT_MEASURED, f"{trouble.sentence}{hint}"),)

    def _refresh(self) -> None:
        """Read the file again when somebody has measured anew."""
        stamp = self._look()
        if self._looked and stamp == self._stamp:
            return
        self._looked, self._stamp = True, stamp
        kept, self._trouble = load_speeds(self._data_dir, self._function)
        self._learner = None if kept is None else kept.learner()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = speeds_file(self._data_dir, self._function).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
