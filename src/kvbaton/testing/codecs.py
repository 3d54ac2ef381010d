"""The conformance suite for codecs: what a codec must do to stand in a segment's header.

Derive from :class:`CodecTests` and say how a codec is made and how far it may change a number::

    class TestMyCodec(CodecTests):
        def make_codec(self):
            return MyCodec(bits=4)

        def bound(self, tensor):
            return tensor.abs().amax() / 15
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.codecs import (
    BytesToBytes,
    Codec,
    CodecChain,
    Raw,
    TensorToBytes,
    TensorToTensor,
    chain_from_json,
)
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import DTYPE_BYTES, JSON, Place, RopeSpec, StoredTensor

if TYPE_CHECKING:
    import torch

ROPE = RopeSpec("default", "half", 8, 10_000.0, 1.0, "f" * 64)
"""How keys of these tests were rotated: the first 8 channels, in halves."""

KEYS, VALUES = Place("k", 3, 0, ROPE), Place("v", 3, 0)
_UNITS_LAST_PLACE = {"F32": 2.0**-20, "BF16": 2.0**-8, "F16": 2.0**-11}
"""What rounding to a dtype may add, relative to the largest number; float32 sums are longer."""


class CodecTests:
    """Conformance suite of :class:`kvbaton.codecs.Codec`, whatever its arrow.

    Attributes
    ----------
    dtypes
        safetensors names of the dtypes that the codec takes.
    shapes
        ``[kv_heads, tokens, head_dim]`` that are tried; ``head_dim`` is 8 or more.
    refuses_not_finite
        NaN and infinity raise when encoding; a codec that stores the very bytes may keep them.
    checks_bytes
        Whatever bytes are decoded, all numbers are finite or ``FormatError`` is raised; a codec
        whose stored memory is the result need not look at it.
    max_examples
        Examples for each property test.
    """

    dtypes: tuple[str, ...] = ("BF16", "F16", "F32")
    shapes: tuple[tuple[int, int, int], ...] = ((2, 256, 64), (3, 37, 16), (1, 1, 8), (2, 5, 128))
    refuses_not_finite = True
    checks_bytes = True
    max_examples = 25

    @abstractmethod
    def make_codec(self) -> Codec:
        """Return the codec."""

    def bound(self, tensor: torch.Tensor) -> torch.Tensor | float:
        """The most by which an element of a float32 tensor may change; 0 where it is lossless.

        One number, or one for each element.  Rounding to the cache's dtype is added.
        """
        return 0.0

    def chain(self) -> CodecChain:
        """The codec with what it needs to be a chain."""
        codec = self.make_codec()
        if isinstance(codec, TensorToTensor):
            return CodecChain((codec, Raw()))
        if isinstance(codec, TensorToBytes):
            return CodecChain((codec,))
        return CodecChain((Raw(), codec))

    @pytest.fixture(params=["k", "v"])
    def place(self, request: pytest.FixtureRequest) -> Place:
        """Keys that were rotated, and values."""
        return KEYS if request.param == "k" else VALUES

    def for_all(self, check: Callable[..., None], **strategies: st.SearchStrategy[object]) -> None:
        """Run a property: ``check`` on many values."""
        bounded = settings(max_examples=self.max_examples, deadline=None, database=None)
        bounded(given(**strategies)(check))()

    # -- metadata -----------------------------------------------------------------------------

    def test_metadata_describes_the_codec(self) -> None:
        """What the header says makes an equal chain, which says the same."""
        chain = self.chain()
        again = chain_from_json(chain.to_json(), self._known())
        assert again == chain
        assert again.to_json() == chain.to_json()

    def test_metadata_is_integers_booleans_and_text(self) -> None:
        """A header has no other values: floats have no one spelling."""
        for entry in self.chain().to_json():
            assert {type(value) for value in entry.values()} <= {int, bool, str}

    def test_another_version_is_refused(self) -> None:
        """Bytes of a version that is not known here are refused, with what would bring it."""
        with pytest.raises(FormatError) as caught:
            self._parsed(version=self.make_codec().version + 1)
        assert caught.value.fault is Fault.UNKNOWN_CODEC
        assert caught.value.at.startswith("$.codecs[")
        assert caught.value.hint

    def test_a_field_that_the_codec_does_not_have_is_refused(self) -> None:
        """Unknown metadata is refused, not ignored."""
        with pytest.raises(FormatError):
            self._parsed(no_such_field=1)

    def _known(self) -> dict[str, type[Codec]]:
        return {codec.name: type(codec) for codec in self.chain().codecs}

    def _parsed(self, **changes: object) -> CodecChain:
        name = self.make_codec().name
        described: list[JSON] = [
            {**entry, **changes} if entry["name"] == name else entry
            for entry in self.chain().to_json()
        ]
        return chain_from_json(described, self._known())

    # -- numbers ------------------------------------------------------------------------------

    def test_storage_says_what_is_stored(self, place: Place) -> None:
        """Names, dtypes, shapes and sizes are known before anything is encoded."""
        for dtype, tensor in self._tensors():
            chain, shape = self.chain(), tuple(tensor.shape)
            wanted = chain.storage(dtype, shape, place)
            found = chain.encode(tensor, place)
            assert [part.name for part in found] == sorted(_names(wanted, place))
            if not chain.behind:
                for part in found:
                    said = wanted[part.name.partition(".")[2]]
                    assert (part.dtype, part.shape) == (said.dtype, said.shape)
                    assert part.data.nbytes == _size(part)
                assert chain.stored_bytes(dtype, shape, place) == sum(map(_size, found))

    def test_what_is_decoded_is_near_what_was_encoded(self, place: Place) -> None:
        """Both dtype and shape are the same, and no element changes by more than the bound."""
        for dtype, tensor in self._tensors():
            decoded = self._there_and_back(tensor, dtype, place)
            assert decoded.dtype == tensor.dtype
            assert decoded.shape == tensor.shape
            self._require_near(decoded, tensor, dtype)

    def test_later_positions(self) -> None:
        """The same holds for a segment in the middle of a sequence."""
        import torch

        torch.manual_seed(5)
        dtype = self.dtypes[0]
        tensor = torch.randn(self.shapes[0]).to(_torch_dtype(dtype))
        decoded = self._there_and_back(tensor, dtype, replace(KEYS, first=70_000))
        self._require_near(decoded, tensor, dtype)

    def test_the_first_tokens_that_a_codec_keeps_are_the_same_bits(self, place: Place) -> None:
        """Where a codec has ``first``, tokens at positions below it come back as they were."""
        first = getattr(self.make_codec(), "first", 0)
        for dtype, tensor in self._tensors():
            decoded = self._there_and_back(tensor, dtype, place)
            assert decoded[:, :first].equal(tensor[:, :first])

    def test_equal_tensors_are_equal_bytes(self, place: Place) -> None:
        """Encoding is a function of the numbers, and leaves them alone."""
        for _, tensor in self._tensors():
            before = tensor.clone()
            first, second = (self.chain().encode(tensor, place) for _ in range(2))
            assert [bytes(part.data) for part in first] == [bytes(part.data) for part in second]
            assert tensor.equal(before)

    def test_memory_with_gaps(self, place: Place) -> None:
        """A view of a larger tensor is encoded as a copy of it is."""
        for _, tensor in self._tensors():
            wide = tensor.repeat_interleave(2, dim=2)[..., ::2]
            found, wanted = self.chain().encode(wide, place), self.chain().encode(tensor, place)
            assert [bytes(part.data) for part in found] == [bytes(part.data) for part in wanted]

    def test_decoding_into_memory_of_the_caller(self, place: Place) -> None:
        """``out`` is filled and returned, unless the stored memory itself is the result."""
        import torch

        for dtype, tensor in self._tensors():
            chain, stored = self.chain(), self._stored(tensor, place)
            out, shape = torch.empty_like(tensor), tuple(tensor.shape)
            decoded = chain.decode(stored, dtype, shape, place, out=out)
            assert chain.views or decoded.data_ptr() == out.data_ptr()
            assert decoded.equal(chain.decode(stored, dtype, shape, place))

    def test_encoding_again_does_not_drift(self, place: Place) -> None:
        """Ten times there and back changes a number by no more than three times does twice."""
        for dtype, tensor in self._tensors():
            decoded = self._there_and_back(tensor, dtype, place)
            several = decoded
            for _ in range(9):
                several = self._there_and_back(several, dtype, place)
            self._require_near(several, decoded, dtype, times=2.0)

    @pytest.mark.parametrize("kind", ["zero", "one", "channel", "token", "tiny"])
    def test_constant_numbers(self, kind: str, place: Place) -> None:
        """Groups without a range, of zeros or others, come back within the bound."""
        import torch

        for dtype in self.dtypes:
            tensor = torch.zeros(self.shapes[0])
            if kind == "channel":
                tensor[..., 3] = -7.25
            elif kind == "token":
                tensor[:, 20] = 3.5
            elif kind != "zero":
                tensor += {"one": 1.0, "tiny": 2.0**-20}[kind]
            tensor = tensor.to(_torch_dtype(dtype))
            self._require_near(self._there_and_back(tensor, dtype, place), tensor, dtype)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_numbers_that_are_not_finite(self, value: float, place: Place) -> None:
        """NaN and infinity raise InputError with the place, wherever they stand."""
        if not self.refuses_not_finite:
            return
        for dtype, tensor in self._tensors():
            for token in {0, tensor.shape[1] - 1}:
                bad = tensor.clone()
                bad[-1, token, 7] = value
                with pytest.raises(InputError) as caught:
                    self.chain().encode(bad, place)
                assert caught.value.at == f"$.layers[{place.layer}].{place.name}", dtype

    # -- bytes --------------------------------------------------------------------------------

    def test_damaged_bytes_are_refused_or_finite(self, place: Place) -> None:
        """No stored bytes make numbers that are not finite, or another error than FormatError."""
        import torch

        if not self.checks_bytes:
            return
        dtype, tensor = next(iter(self._tensors()))
        chain, whole = self.chain(), self._stored(tensor, place)

        def check(changes: list[tuple[int, int]]) -> None:
            stored = {name: memoryview(bytearray(data)) for name, data in whole.items()}
            for data in stored.values():
                for position, value in changes:
                    data[position % len(data)] = value
            try:
                decoded = chain.decode(stored, dtype, tuple(tensor.shape), place)
            except FormatError:
                return
            assert bool(torch.isfinite(decoded).all())

        position = st.one_of(st.integers(0, 64), st.integers(0, 1 << 20))
        change = st.tuples(position, st.sampled_from([0x00, 0x7F, 0x80, 0xFC, 0xFF]))
        self.for_all(check, changes=st.lists(change, min_size=1, max_size=8))

    def test_bytes_come_back_and_never_more(self) -> None:
        """A bytes-to-bytes codec is lossless for any bytes, and refuses another size than said."""
        codec = self.make_codec()
        if not isinstance(codec, BytesToBytes):
            return

        def check(data: bytes) -> None:
            squeezed = codec.squeeze(memoryview(data))
            assert bytes(codec.expand(squeezed, len(data))) == data
            for size_bytes in {max(0, len(data) - 1), len(data) + 1} - {len(data)}:
                with pytest.raises(FormatError):
                    codec.expand(squeezed, size_bytes)

        self.for_all(check, data=st.binary(max_size=2000))

    # -- what they are made of ----------------------------------------------------------------

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Normal numbers with an outlier channel and a large token, of every dtype and shape."""
        import torch

        torch.manual_seed(3)
        made = []
        for dtype in self.dtypes:
            for shape in self.shapes:
                tensor = torch.randn(shape)
                tensor[..., 5] += 60.0
                tensor[:, shape[1] // 2] *= 4.0
                made.append((dtype, tensor.to(_torch_dtype(dtype))))
        return made

    def _stored(self, tensor: torch.Tensor, place: Place) -> dict[str, memoryview]:
        parts = self.chain().encode(tensor, place)
        return {part.name.partition(".")[2]: memoryview(bytearray(part.data)) for part in parts}

    def _there_and_back(self, tensor: torch.Tensor, dtype: str, place: Place) -> torch.Tensor:
        stored = self._stored(tensor, place)
        return self.chain().decode(stored, dtype, tuple(tensor.shape), place)

    def _require_near(
        self, found: torch.Tensor, wanted: torch.Tensor, dtype: str, *, times: float = 1.0
    ) -> None:
        allowed = self.bound(wanted.float())
        if isinstance(allowed, float) and allowed == 0.0:
            assert found.equal(wanted)
            return
        rounding = _UNITS_LAST_PLACE[dtype] * wanted.float().abs().amax()
        excess = (found.float() - wanted.float()).abs() - (allowed + rounding) * times
        assert float(excess.max()) <= 0.0


def _names(wanted: object, place: Place) -> list[str]:
    suffixes = list(wanted) if isinstance(wanted, dict) else []
    return [f"{place.name}.{suffix}" if suffix else place.name for suffix in suffixes]


def _size(part: StoredTensor) -> int:
    from math import prod

    return prod(part.shape) * DTYPE_BYTES[part.dtype]


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    return {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[name]
