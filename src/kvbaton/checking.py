"""A cache held to its tokens: layer 0 on every take, windows and reading on request.

V of layer 0 is computed anew for the ids of everything that is attached, and compared between
decoding and attaching, before any later layer is looked at.  Keys need no check of their own: where
a segment was computed, and by which rotary table, is part of its header and of the model's
function, which were checked before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbaton import codecs
from kvbaton.arrows import Cut, Opened
from kvbaton.engines.base import Engine
from kvbaton.errors import Fault, FormatError, InputError, UnsupportedLayout
from kvbaton.kinds import Importance, ReasonCode
from kvbaton.probes import binding
from kvbaton.reasons import located
from kvbaton.types import (
    Baton,
    DecodedLayer,
    Fidelity,
    FidelityClass,
    LayerRange,
    Reason,
    SegmentHeader,
    TokenRun,
)
from kvbaton.wire.structure import layer_places

if TYPE_CHECKING:
    import torch

    from kvbaton.codecs.calibration import CalibrationRecord
    from kvbaton.probes.limits import ProbeLimits
    from kvbaton.probes.reconstruction import Reconstruction
    from kvbaton.probes.windows import WindowReport
    from kvbaton.relay import Relay

_UNMEASURED = "how far honest caches of this kind lie from their tokens was not measured"

Lost = Callable[[Fidelity], float | None]
"""What a segment promises -> the measured relative error of V of layer 0; None if unknown."""


@dataclass(slots=True)
class Tally:
    """What a check has done: positions compared, and tokens whose V was computed for it."""

    positions: int = 0
    computed_tokens: int = 0


def check_layers(
    decoded: Iterable[tuple[int, DecodedLayer]],
    opened: Sequence[Opened],
    ids: Sequence[int],
    engine: Engine,
    *,
    cuts: Sequence[Sequence[Cut]] | None = None,
    noise: float = 0.0,
    lost: Lost | None = None,
    tally: Tally | None = None,
) -> Iterator[tuple[int, DecodedLayer]]:
    """Pass on layers; those of layer 0 only if their V is that of the baton's tokens.

    Where layer 0 is a window layer, only the end of the sequence has a V to compare.

    Parameters
    ----------
    decoded
        By layer and then by position, with the index of each one's segment.
    opened
        The segments.
    ids
        Ids of the baton, by its positions.
    cuts
        Positions of each segment of the manifest that are attached, in those at which it was
        computed; all by default.
    noise
        Relative level of noise that the sender has added to K and V.  Tokens whose V differ by
        less than twice of it are not told apart.
    lost
        Finds the error of a codec through which V went before it was stored losslessly.
    tally
        Is told what was done.

    Raises
    ------
    FormatError
        ``BINDING``: a position holds another token than the baton says; ``at`` is the segment's
        range.
    """
    check = _TokenCheck(opened, ids, engine, noise, lost or _unknown, tally or Tally())
    for index, part in decoded:
        if part.layer == 0:
            with located(f"$.segments[{index}]"):
                check(index, part, None if cuts is None else cuts[index])
        yield index, part


def recorded_losses(find: Callable[[str], CalibrationRecord | None]) -> Lost:
    """Errors of layer 0 by calibration record, from what finds records by their digest."""

    def lost(fidelity: Fidelity) -> float | None:
        record = None if fidelity.calibration is None else find(fidelity.calibration)
        return None if record is None else record.first_layer_error

    return lost


def _unknown(_: Fidelity) -> None:
    """No records are at hand."""


class _TokenCheck:
    """Compares V of layer 0; what is expected is computed once, for each id."""

    def __init__(
        self,
        opened: Sequence[Opened],
        ids: Sequence[int],
        engine: Engine,
        noise: float,
        lost: Lost,
        tally: Tally,
    ) -> None:
        self._ids, self._engine = ids, engine
        self._noise, self._lost, self._tally = noise, lost, tally
        self._opened = {item.index: item for item in opened}
        self._rows: dict[int, int] = {}
        self._table: torch.Tensor | None = None

    def __call__(self, index: int, part: DecodedLayer, cuts: Sequence[Cut] | None) -> None:
        item = self._opened[index]
        number, place = next(
            (n, entry) for n, entry in enumerate(item.header.ranges) if entry.layer == part.layer
        )
        expected = self._expected(item, part.run)
        through = _through_codec(item.header, place, expected)
        noisy = item.header.fidelity.kind is FidelityClass.APPROXIMATE
        allowed = binding.Allowance(
            item.header.layout.dtype,
            self._lost_before(item.header, place),
            self._noise if noisy else 0.0,
        )
        for first, stop in _attached(part.run, cuts):
            self._tally.positions += stop - first
            there = slice(first, stop)
            found = allowed.first_other(
                part.values[:, there],
                expected[:, there],
                None if through is None else through[:, there],
            )
            if found is not None:
                position = part.run.first + item.shift + first + found
                raise FormatError(
                    f"position {position} holds the values of another token than the transcript "
                    "has there",
                    fault=Fault.BINDING,
                    at=f"$.ranges[{number}]",
                )

    def _expected(self, item: Opened, run: TokenRun) -> torch.Tensor:
        """V ``[kv_heads, n, v_dim]`` of the ids at a run's positions, on the host."""
        import torch

        if self._table is None:
            self._table = self._computed()
        rows = [self._rows[token] for token in self._tokens(item, run)]
        return self._table.index_select(1, torch.tensor(rows))

    def _computed(self) -> torch.Tensor:
        """V of each id that layer 0 of the segments stands for."""
        for item in self._opened.values():
            for place in item.header.ranges:
                if place.layer == 0:
                    for token in self._tokens(item, place.run):
                        self._rows.setdefault(token, len(self._rows))
        self._tally.computed_tokens += len(self._rows)
        try:
            return self._engine.first_values(list(self._rows))
        except InputError as error:
            raise FormatError(error.sentence, fault=Fault.BINDING, at="$.ranges[0]") from error

    def _tokens(self, item: Opened, run: TokenRun) -> Sequence[int]:
        """Ids of the baton at a segment's run."""
        first = run.first + item.shift
        found = self._ids[first : first + run.count]
        if first < 0 or len(found) != run.count:
            raise FormatError(
                "the segment stands for positions that the baton does not have",
                fault=Fault.TOKENS,
                at="$.span",
            )
        return found

    def _lost_before(self, header: SegmentHeader, place: LayerRange) -> float:
        """Relative error that V may have besides that of the segment's own chain."""
        fidelity = header.fidelity
        chain = _v_chain(header, place)
        own = chain.fidelity.kind is not FidelityClass.EXACT
        approximate = fidelity.kind is FidelityClass.APPROXIMATE
        before = "+" in fidelity.codec if own else fidelity.compressed
        if not (before or approximate):
            return 0.0
        found = self._lost(fidelity)
        return binding.UNKNOWN_LOSS if found is None else found


def _v_chain(header: SegmentHeader, place: LayerRange) -> codecs.CodecChain:
    return codecs.chain_from_json(header.codecs[place.v_codec], codecs.CODECS)


def _through_codec(
    header: SegmentHeader, place: LayerRange, expected: torch.Tensor
) -> torch.Tensor | None:
    """What the segment's chain makes of V; None where it loses nothing."""
    chain = _v_chain(header, place)
    if chain.fidelity.kind is FidelityClass.EXACT:
        return None
    _, v_place = layer_places(header.layout, place.layer, place.run.first)
    skip = len(v_place.name) + 1
    stored = {
        tensor.name[skip:]: memoryview(bytearray(tensor.data))
        for tensor in chain.encode(expected.contiguous(), v_place)
    }
    return chain.decode(stored, header.layout.dtype, tuple(expected.shape), v_place)


def _attached(run: TokenRun, cuts: Sequence[Cut] | None) -> Iterator[tuple[int, int]]:
    """The parts of a run that are attached, as indices into it."""
    if cuts is None:
        yield 0, run.count
        return
    for cut in cuts:
        first, stop = max(run.first, cut.run.first), min(run.stop, cut.run.stop)
        if first < stop:
            yield first - run.first, stop - run.first


# --- codecs ------------------------------------------------------------------------------------


def require_stated_codecs(
    header: SegmentHeader, plans: Callable[[str], codecs.CodecPlan | None]
) -> list[codecs.CodecChain]:
    """The codec chains of a segment, once they are those that its fidelity speaks of.

    A segment that was stored by a lossy chain says so, and by which codec; where the calibration
    record that it names is known here, its chains are the ones that were measured.

    Parameters
    ----------
    plans
        The plan that a record has measured, by its digest; None where it is not known.

    Raises
    ------
    FormatError
        They are others.
    """
    chains = [codecs.chain_from_json(chain, codecs.CODECS) for chain in header.codecs]
    lossy = [chain.fidelity.kind is not FidelityClass.EXACT for chain in chains]
    stated = header.fidelity
    if not any(lossy):
        return chains
    if not stated.compressed or stated.kind is FidelityClass.EXACT:
        raise _misstated("a codec has lost something that the segment does not speak of")
    plan = None if stated.calibration is None else plans(stated.calibration)
    if plan is None:
        return chains
    for place in header.ranges:
        wanted = plan.chains(place.layer)
        for index, chain in zip((place.k_codec, place.v_codec), wanted, strict=True):
            if lossy[index] and header.codecs[index] != chain.to_json():
                raise _misstated("a codec was used that the calibration record did not measure")
    return chains


def _misstated(sentence: str) -> FormatError:
    return FormatError(sentence, fault=Fault.RANGES, at="$.fidelity")


# --- windows, and a whole baton ----------------------------------------------------------------


def probe_refusal(
    engine: Engine, promised: Iterable[Fidelity], known: ProbeLimits | None
) -> Reason | None:
    """Why windows of a cache of these fidelities cannot be compared; None if they can.

    Parameters are those of :func:`probe_windows`; nothing is attached or computed.
    """
    from kvbaton.probes.limits import limits_for

    layout = engine.layout
    if limits_for(promised, known, dtype=layout.dtype, layers=len(layout.layers)) is not None:
        return None
    return Reason(ReasonCode.PROBE_IMPOSSIBLE, _UNMEASURED)


def probe_windows(
    engine: Engine,
    cache: Any,
    ids: Sequence[int],
    promised: Iterable[Fidelity],
    known: ProbeLimits | None,
    *,
    importance: Importance = Importance.CRITICAL,
    rng: random.Random | None = None,
) -> tuple[WindowReport | None, Reason | None]:
    """Compute windows of a received cache anew; what they showed, and what is wrong.

    Without a reason all is well; without a report as well, nothing was asked for.  The cache is
    the same afterwards.

    Parameters
    ----------
    ids
        Ids of all positions of the cache.
    promised
        Fidelities of the segments that it was put together from, as they stand in the baton.
    known
        Limits that were measured on the function; None for none.
    rng
        Draws the places; by default the operating system does.
    """
    from kvbaton.probes.limits import limits_for
    from kvbaton.probes.windows import choose_windows, examine

    windows = choose_windows(cache.length, importance, rng)
    if not windows:
        return None, None
    layout = engine.layout
    limits = limits_for(promised, known, dtype=layout.dtype, layers=len(layout.layers))
    if limits is None:
        return None, Reason(ReasonCode.PROBE_IMPOSSIBLE, _UNMEASURED)
    try:
        report = examine(engine, cache, ids, windows, limits)
    except UnsupportedLayout as error:
        return None, Reason(ReasonCode.PROBE_IMPOSSIBLE, error.sentence, error.at)
    odd = Reason(ReasonCode.WINDOWS_ODD, report.sentence()) if report.odd else None
    return report, odd


@dataclass(frozen=True, slots=True)
class Examined:
    """What a baton's cache shows to the model that it is for.

    ``positions`` were compared in layer 0.  ``reasons`` is what is wrong: nothing, where all
    checks were made and passed.
    """

    positions: int
    windows: WindowReport | None
    reconstruction: Reconstruction | None
    reasons: tuple[Reason, ...]

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it: without any text of the baton."""
        read = self.reconstruction
        return {
            "layer0_positions": self.positions,
            "windows": None if self.windows is None else self.windows.to_json(),
            "reconstruction": None
            if read is None
            else {
                "positions": read.positions,
                "share": read.share,
                "first_wrong": read.first_wrong,
                "poor": read.poor,
            },
            "reasons": [reason.to_json() for reason in self.reasons],
        }


def examine_baton(
    relay: Relay,
    baton: Baton,
    known: ProbeLimits | None = None,
    *,
    importance: Importance = Importance.CRITICAL,
    deadline_s: float = math.inf,
) -> Examined:
    """Attach all of an opened baton to a cache of its own, and make every check there is.

    Parameters
    ----------
    relay
        Of the model that the baton is for.
    known
        Limits of windows that were measured on the model.
    """
    from kvbaton.probes.reconstruction import reconstruction

    engine, listing = relay.engine, baton.manifest
    tokens, ids = listing.cached_tokens, baton.transcript.ids[: listing.cached_tokens]
    if listing.function != engine.function:
        parts = ", ".join(listing.function.differing(engine.function))
        differs = Reason(ReasonCode.FUNCTION_DIFFERS, f"it is of another model: other {parts}")
        return Examined(0, None, None, (differs,))
    if not tokens:
        return Examined(0, None, None, (Reason(ReasonCode.NO_KV, "the baton has no cache"),))
    taken = relay.attach(
        listing.segments,
        baton.transcript.ids,
        tokens,
        room=0,
        deadline_s=deadline_s,
        store_url=baton.ref.store,
        noise=listing.noise,
    )
    if taken.cache is None:
        return Examined(taken.probed, None, None, taken.reasons)
    promised = [ref.promised for ref in listing.segments]
    report, odd = probe_windows(engine, taken.cache, ids, promised, known, importance=importance)
    read = reconstruction(engine, taken.cache, ids)
    return Examined(taken.probed, report, read, () if odd is None else (odd,))
