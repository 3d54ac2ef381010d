"""What every engine must do, as a test class to inherit.

::

    class TestMyEngine(EngineTests):
        @classmethod
        def make_engine(cls):
            return MyEngine("tiny-model")
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.engines.base import Engine
from kvbaton.errors import (
    EmptyInput,
    FormatError,
    InputError,
    StaleTurn,
    UnsupportedLayout,
    WindowExceeded,
)
from kvbaton.types import (
    AlignedLayer,
    ExportedLayer,
    KVLayout,
    LayerKind,
    SegmentKind,
    SegmentSpan,
    TokenRun,
)


def cut(layout: KVLayout, tokens: int, size: int, *, first: int = 0) -> list[SegmentSpan]:
    """Spans that carry ``tokens`` positions of a cache: runs of ``size`` and the windows' state."""
    starts = range(first, tokens, size) if layout.full_layers else ()
    spans = [SegmentSpan(start, min(size, tokens - start)) for start in starts]
    if layout.window_layers:
        spans.append(SegmentSpan(0, tokens, SegmentKind.WINDOW))
    return spans


def aligned(parts: Iterable[ExportedLayer]) -> Iterator[AlignedLayer]:
    """What was exported as what is attached, as if it had been stored and fetched in between."""
    for part in parts:
        yield AlignedLayer(part.span, part.layer, part.run, part.keys, part.values)


def attach(engine: Engine, parts: Iterable[AlignedLayer], tokens: int, *, room: int = 32) -> Any:
    """A cache of ``tokens`` positions filled with ``parts``."""
    slot = engine.slot(tokens, room=room)
    for part in parts:
        slot.write(part)
    return slot.finish()


def hand_over(
    sender: Engine,
    cache: Any,
    receiver: Engine | None = None,
    *,
    size: int = 16,
    room: int = 32,
    tokens: int | None = None,
) -> Any:
    """The receiver's cache after attaching everything that the sender's cache exports.

    Parameters
    ----------
    size
        Positions per segment.
    tokens
        Positions to hand over; all of the cache by default.
    """
    tokens = cache.length if tokens is None else tokens
    parts = sender.export(cache, cut(sender.layout, tokens, size))
    return attach(receiver or sender, aligned(parts), tokens, room=room)


def continuation(engine: Engine, cache: Any, ids: Sequence[int]) -> list[torch.Tensor]:
    """Logits ``[vocab]`` behind each of ``ids``, fed one at a time."""
    return [engine.forward(cache, [token]) for token in ids]


class EngineTests:
    """Conformance suite of :class:`kvbaton.engines.base.Engine`.

    Attributes
    ----------
    tolerance
        Largest absolute difference between logits of attach and of the sender; 0 is bit for bit.
    contexts
        Context lengths to hand over; they should lie on both sides of every window.
    max_examples
        Examples for each property test.
    same_token
        Largest relative difference of K and V of a token that rounding explains.
    """

    tolerance = 0.0
    same_token = 0.01
    contexts = (1, 2, 7, 40)
    max_examples = 10

    @classmethod
    @abstractmethod
    def make_engine(cls) -> Engine:
        """Return an engine; it is used by all tests of the class."""

    def ids(self, count: int, seed: int = 0) -> list[int]:
        """Ids that the model knows; other ones for another seed."""
        return [3 + (31 * i + 7 * i * i + 13 * seed) % 89 for i in range(count)]

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        """The engine under test."""
        return cls.make_engine()

    def filled(self, engine: Engine, tokens: int, seed: int = 0) -> Any:
        """A cache after a context of ``tokens`` positions."""
        cache = engine.new_cache(tokens)
        engine.forward(cache, self.ids(tokens, seed))
        return cache

    def assert_same(self, got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
        """Logits are equal, to the bit or within the tolerance."""
        assert len(got) == len(wanted)
        for mine, theirs in zip(got, wanted, strict=True):
            if self.tolerance == 0:
                assert torch.equal(mine, theirs)
            else:
                assert float((mine - theirs).abs().max()) <= self.tolerance

    # -- attach(export(x)) ----------------------------------------------------------------------

    def test_attach_gives_the_senders_own_continuation(self, engine: Engine) -> None:
        """Behind any context, several steps after attach give the sender's own logits."""
        steps = self.ids(4, seed=1)
        for tokens in self.contexts:
            sender = self.filled(engine, tokens)
            receiver = hand_over(engine, sender)
            assert receiver.length == tokens
            self.assert_same(
                continuation(engine, receiver, steps), continuation(engine, sender, steps)
            )

    def test_any_cut_into_segments_gives_the_same(self, engine: Engine) -> None:
        """Size of segments and room behind them do not show in the logits."""
        tokens = self.contexts[-1]
        sender = self.filled(engine, tokens)
        exported = {
            size: list(engine.export(sender, cut(engine.layout, tokens, size)))
            for size in (1, 3, 16, tokens)
        }
        wanted = [engine.forward(sender, self.ids(1, seed=1))]

        def check(size: int, room: int) -> None:
            cache = attach(engine, aligned(exported[size]), tokens, room=room)
            self.assert_same([engine.forward(cache, self.ids(1, seed=1))], wanted)

        bounded = settings(max_examples=self.max_examples, deadline=None, database=None)
        sizes = st.sampled_from(sorted(exported))
        bounded(given(size=sizes, room=st.integers(0, 70))(check))()

    def test_export_while_decoding(self, engine: Engine) -> None:
        """A context that was prefilled in part and decoded in part is handed over as it is."""
        sender = self.filled(engine, 5)
        for token in self.ids(9, seed=2):
            engine.forward(sender, [token])
        receiver = hand_over(engine, sender, size=4)
        steps = self.ids(3, seed=1)
        self.assert_same(continuation(engine, receiver, steps), continuation(engine, sender, steps))

    def test_only_what_is_fed_is_computed(self, engine: Engine) -> None:
        """Behind an attached cache, the model runs the new positions and no others."""
        sender = self.filled(engine, 20)
        before = engine.computed_tokens()
        receiver = hand_over(engine, sender)
        assert engine.computed_tokens() == before
        engine.forward(receiver, self.ids(3))
        assert engine.computed_tokens() - before == 3

    def test_two_takers_do_not_share(self, engine: Engine) -> None:
        """Takers of the same bytes go on differently without seeing one another."""
        sender = self.filled(engine, 12)
        parts = list(engine.export(sender, cut(engine.layout, 12, 8)))
        first, second, alone = (attach(engine, aligned(parts), 12) for _ in range(3))
        mine, theirs = self.ids(4, seed=1), self.ids(4, seed=2)
        interleaved = [
            (engine.forward(first, [a]), engine.forward(second, [b]))
            for a, b in zip(mine, theirs, strict=True)
        ]
        self.assert_same([pair[0] for pair in interleaved], continuation(engine, alone, mine))
        self.assert_same([pair[1] for pair in interleaved], continuation(engine, sender, theirs))

    # -- export ---------------------------------------------------------------------------------

    def test_export_goes_by_span_and_then_by_layer(self, engine: Engine) -> None:
        """Each span gives every layer of its kind once, with its shape and positions."""
        layout, tokens = engine.layout, self.contexts[-1]
        spans = cut(layout, tokens, 16)
        parts = list(engine.export(self.filled(engine, tokens), spans))
        wanted = [
            (span, layer)
            for span in spans
            for layer in (
                layout.full_layers if span.kind is SegmentKind.RUN else layout.window_layers
            )
        ]
        assert [(part.span, part.layer) for part in parts] == wanted
        for part in parts:
            spec = layout.layers[part.layer]
            held = part.span.count
            if spec.kind is LayerKind.WINDOW:
                held = min(held, spec.window - 1)
            assert part.run == TokenRun(part.span.stop - held, held)
            assert tuple(part.keys.shape) == (spec.kv_heads, held, spec.k_dim)
            assert tuple(part.values.shape) == (spec.kv_heads, held, spec.v_dim)
            assert part.keys.device.type == part.values.device.type == "cpu"

    def test_exported_tensors_are_copies(self, engine: Engine) -> None:
        """Neither does the cache see later changes of what it exported, nor the other way round."""
        cache = self.filled(engine, 12)
        spans = cut(engine.layout, 12, 12)
        parts = list(engine.export(cache, spans))
        kept = [(part.keys.clone(), part.values.clone()) for part in parts]
        again = list(engine.export(cache, spans))
        for part in again:
            part.keys.zero_()
            part.values.zero_()
        engine.forward(cache, self.ids(20, seed=1))
        for part, (keys, values) in zip(parts, kept, strict=True):
            assert torch.equal(part.keys, keys)
            assert torch.equal(part.values, values)
        fresh = self.filled(engine, 12)
        engine.forward(fresh, self.ids(20, seed=1))
        steps = self.ids(2, seed=2)
        self.assert_same(continuation(engine, cache, steps), continuation(engine, fresh, steps))

    def test_what_was_exported_once_stays_so(self, engine: Engine) -> None:
        """Full layers export the same bytes for the same positions however the cache has grown."""
        if not engine.layout.full_layers:
            return
        cache, spans = self.filled(engine, 10), [SegmentSpan(2, 7)]
        before = list(engine.export(cache, spans))
        engine.forward(cache, self.ids(30, seed=1))
        for old, new in zip(before, engine.export(cache, spans), strict=True):
            assert torch.equal(old.keys, new.keys)
            assert torch.equal(old.values, new.values)

    def test_positions_that_are_not_there_are_stale(self, engine: Engine) -> None:
        """Positions behind the cache, and a window's state of long ago, raise StaleTurn."""
        layout, cache = engine.layout, self.filled(engine, 6)
        kind = SegmentKind.RUN if layout.full_layers else SegmentKind.WINDOW
        with pytest.raises(StaleTurn):
            list(engine.export(cache, [SegmentSpan(0, 7, kind)]))
        for index in layout.window_layers[:1]:
            engine.forward(cache, self.ids(2 * layout.layers[index].window, seed=1))
            with pytest.raises(StaleTurn):
                list(engine.export(cache, [SegmentSpan(0, 6, SegmentKind.WINDOW)]))

    # -- the slot -------------------------------------------------------------------------------

    def parts(self, engine: Engine, tokens: int) -> list[AlignedLayer]:
        """All parts of a context, in segments of 8."""
        cache = self.filled(engine, tokens)
        return list(aligned(engine.export(cache, cut(engine.layout, tokens, 8))))

    @pytest.mark.parametrize("left_out", [0, -1])
    def test_an_incomplete_slot_gives_no_cache(self, engine: Engine, left_out: int) -> None:
        """A slot that lacks one part of one layer raises FormatError when it is finished."""
        parts = self.parts(engine, 8)
        del parts[left_out]
        slot = engine.slot(8, room=4)
        for part in parts:
            slot.write(part)
        with pytest.raises(FormatError):
            slot.finish()

    def test_an_empty_slot_gives_no_cache(self, engine: Engine) -> None:
        """A slot into which nothing was written raises FormatError when it is finished."""
        with pytest.raises(FormatError):
            engine.slot(3, room=0).finish()

    def test_a_position_is_written_once(self, engine: Engine) -> None:
        """The same part twice raises FormatError."""
        part = self.parts(engine, 8)[0]
        slot = engine.slot(8, room=4)
        slot.write(part)
        with pytest.raises(FormatError):
            slot.write(part)

    def test_parts_of_a_layer_come_in_order(self, engine: Engine) -> None:
        """A part with a gap before it raises FormatError, and so does one behind the slot."""
        part = self.parts(engine, 8)[0]
        moved = replace(part, run=replace(part.run, first=part.run.first + 1))
        for tokens in (8, 40):
            with pytest.raises(FormatError):
                engine.slot(tokens, room=4).write(moved)
        with pytest.raises(FormatError):
            engine.slot(4, room=4).write(part)

    @pytest.mark.parametrize(
        "wrong", ["layer", "heads", "tokens", "k_dim", "v_dim", "k_dtype", "v_dtype"]
    )
    def test_a_part_of_another_form_is_refused(self, engine: Engine, wrong: str) -> None:
        """Another layer, shape or dtype than the model's raises FormatError, nothing is cast."""
        part = self.parts(engine, 8)[0]
        other = torch.float64 if part.keys.dtype != torch.float64 else torch.float32
        changed = {
            "layer": {"layer": len(engine.layout.layers)},
            "heads": {"keys": part.keys.repeat(2, 1, 1)},
            "tokens": {"keys": part.keys[:, 1:]},
            "k_dim": {"keys": part.keys[:, :, 1:]},
            "v_dim": {"values": part.values[:, :, 1:]},
            "k_dtype": {"keys": part.keys.to(other)},
            "v_dtype": {"values": part.values.to(other)},
        }[wrong]
        with pytest.raises(FormatError):
            engine.slot(8, room=4).write(replace(part, **changed))

    def test_a_negative_layer_is_refused(self, engine: Engine) -> None:
        """Layers are not counted from the end."""
        part = self.parts(engine, 8)[0]
        with pytest.raises(FormatError):
            engine.slot(8, room=4).write(replace(part, layer=-1))

    # -- computing ------------------------------------------------------------------------------

    def test_feeding_nothing_is_refused(self, engine: Engine) -> None:
        """Without ids there are no logits: EmptyInput."""
        with pytest.raises(EmptyInput):
            engine.forward(engine.new_cache(4), [])

    def test_the_window_is_held(self, engine: Engine) -> None:
        """More tokens than the model attends to raise WindowExceeded, and none are computed."""
        before = engine.computed_tokens()
        cache = engine.new_cache(4)
        with pytest.raises(WindowExceeded):
            engine.forward(cache, [3] * (engine.max_tokens + 1))
        assert (engine.computed_tokens(), cache.length) == (before, 0)

    def test_a_cache_grows_beyond_its_capacity(self, engine: Engine) -> None:
        """A capacity that was too small costs time and nothing else."""
        small, large = engine.new_cache(1), engine.new_cache(64)
        ids = self.ids(30)
        wanted = [engine.forward(large, ids[:9]), *continuation(engine, large, ids[9:])]
        self.assert_same(
            [engine.forward(small, ids[:9]), *continuation(engine, small, ids[9:])], wanted
        )

    def test_logits_are_those_of_the_last_position(self, engine: Engine) -> None:
        """One vector of float32 logits, which depends on what was fed."""
        one, other = (engine.forward(engine.new_cache(8), ids) for ids in ([3, 4, 5], [3, 4, 6]))
        assert one.dim() == 1
        assert one.dtype == torch.float32
        assert not torch.equal(one, other)

    # -- what probes need -----------------------------------------------------------------------

    def first_held(self, engine: Engine, cache: Any) -> tuple[int, torch.Tensor]:
        """The first position that layer 0 holds, and its V on the host."""
        full = engine.layout.layers[0].kind is LayerKind.FULL
        kind = SegmentKind.RUN if full else SegmentKind.WINDOW
        part = next(iter(engine.export(cache, [SegmentSpan(0, cache.length, kind)])))
        return part.run.first, part.values

    def test_first_values_are_those_of_any_cache(self, engine: Engine) -> None:
        """However a cache was made, its layer 0 holds what each id alone gives."""
        ids = self.ids(self.contexts[-1])
        distinct = sorted(set(ids))
        table = engine.first_values(distinct)
        spec = engine.layout.layers[0]
        assert tuple(table.shape) == (spec.kv_heads, len(distinct), spec.v_dim)
        whole, stepwise = engine.new_cache(len(ids)), engine.new_cache(1)
        engine.forward(whole, ids)
        for token in ids:
            engine.forward(stepwise, [token])
        for cache in (whole, stepwise):
            first, held = self.first_held(engine, cache)
            wanted = table[:, [distinct.index(token) for token in ids[first:]]]
            assert held.dtype == wanted.dtype
            off = (held.float() - wanted.float()).norm(dim=(0, 2))
            assert bool((off <= self.same_token * wanted.float().norm(dim=(0, 2))).all())

    def test_first_values_tell_tokens_apart(self, engine: Engine) -> None:
        """Different ids have different values, and an id has the same ones in any order."""
        ids = sorted(set(self.ids(12)))
        table = engine.first_values(ids).float()
        again = engine.first_values(ids[::-1]).float().flip(1)
        size = table.norm(dim=(0, 2))
        assert bool(((table - again).norm(dim=(0, 2)) <= self.same_token * size).all())
        apart = (table[:, 1:] - table[:, :-1]).norm(dim=(0, 2))
        assert bool((apart > 2 * self.same_token * size[1:]).all())

    def test_probes_are_not_counted(self, engine: Engine) -> None:
        """What is computed to look at a cache is no part of what an answer has computed."""
        cache, ids = self.filled(engine, 12), self.ids(12)
        before = engine.computed_tokens()
        engine.first_values(ids)
        if not engine.layout.window_layers:
            engine.window_differences(cache, ids, range(4, 8))
        assert engine.computed_tokens() == before

    def test_ids_that_the_model_does_not_know_have_no_values(self, engine: Engine) -> None:
        """An id beyond the vocabulary is an InputError."""
        for ids in ([3, engine.vocabulary], [-1]):
            with pytest.raises(InputError):
                engine.first_values(ids)

    def test_windows_agree_with_honest_caches_and_leave_them(self, engine: Engine) -> None:
        """Rows computed anew lie where they lay; the cache is bit for bit the same afterwards."""
        tokens = self.contexts[-1]
        cache, ids = self.filled(engine, tokens), self.ids(tokens)
        rows = [0, *range(tokens // 2, tokens)]
        if engine.layout.window_layers:
            with pytest.raises(UnsupportedLayout):
                engine.window_differences(cache, ids, rows)
            return
        spans = cut(engine.layout, tokens, 16)
        before = list(engine.export(cache, spans))
        found = engine.window_differences(cache, ids, rows)
        assert tuple(found.shape) == (2, len(engine.layout.layers), len(rows))
        assert float(found.max()) <= self.same_token
        for old, new in zip(before, engine.export(cache, spans), strict=True):
            assert torch.equal(old.keys, new.keys)
            assert torch.equal(old.values, new.values)

    def test_windows_see_other_tokens_before_them(self, engine: Engine) -> None:
        """Rows that were computed behind another beginning differ, but in layer 0."""
        if engine.layout.window_layers:
            return
        tokens = self.contexts[-1]
        cache, ids = self.filled(engine, tokens), self.ids(tokens)
        other = self.ids(tokens // 2, seed=3) + ids[tokens // 2 :]
        foreign = engine.new_cache(tokens)
        engine.forward(foreign, other)
        mixed = [
            *engine.export(cache, [SegmentSpan(0, tokens // 2)]),
            *engine.export(foreign, [SegmentSpan(tokens // 2, tokens - tokens // 2)]),
        ]
        received = attach(engine, aligned(mixed), tokens)
        found = engine.window_differences(received, ids, range(tokens // 2, tokens))
        assert float(found[:, 0].max()) <= self.same_token
        assert float(found[:, 1:].max()) > 10 * self.same_token

    # -- identity -------------------------------------------------------------------------------

    def test_the_function_is_named(self, engine: Engine) -> None:
        """The function id is 64 hexadecimal digits over sorted parts, the same at every look."""
        function = engine.function
        assert len(bytes.fromhex(function.digest)) == 32
        assert list(function.parts) == sorted(function.parts)
        assert engine.function == function

    def test_the_same_model_has_the_same_function(self, engine: Engine) -> None:
        """Two engines made alike have one function id and one layout."""
        twin = self.make_engine()
        assert twin.function == engine.function
        assert twin.layout == engine.layout
