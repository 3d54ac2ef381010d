"""Each way in which a segment can be bad, with its fault and its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.wire import samples

from kvbaton.errors import DigestMismatch, Fault, FormatError, StoreError
from kvbaton.types import SegmentHeader
from kvbaton.wire import limits, segment
from kvbaton.wire.digests import range_digest
from kvbaton.wire.segment import header_length, parse_header, read_header, verify_range
from kvbaton.wire.structure import raw_storage

RUN = samples.file_bytes(samples.run_segment())
WINDOW = samples.file_bytes(samples.window_segment())


def read_all(data: bytes, *, address: str | None = None) -> SegmentHeader:
    """Read a segment as a receiver does: header, then every layer range."""

    def read(offset: int, size_bytes: int) -> bytes:
        if offset + size_bytes > len(data) or size_bytes > limits.MAX_HEADER_BYTES:
            raise StoreError(f"asked for {size_bytes} bytes from {offset} on")
        return data[offset : offset + size_bytes]

    keys = samples.KEYS if address else None
    header = read_header(read, file_size=len(data), address=address, keys=keys)
    for part in header.ranges:
        start, stop = header.body_start + part.start, header.body_start + part.stop
        verify_range(header, part, memoryview(data)[start:stop])
    return header


@dataclass(frozen=True)
class Case:
    """A change to a good segment, and what must come of it."""

    name: str
    fault: Fault
    at: str
    data: bytes


def changed(
    name: str, fault: Fault, at: str, change: Callable[[Any, Any], Any], *, base: bytes = RUN
) -> Case:
    """A segment whose description and tensor table ``change`` has edited."""
    description, table, body = samples.taken_apart(base)
    change(description, table)
    return Case(name, fault, at, samples.header_file(description, table, body))


def respelled(name: str, fault: Fault, at: str, respell: Callable[[bytes], bytes]) -> Case:
    """A segment whose header JSON ``respell`` has edited as text."""
    length = header_length(RUN)
    text = RUN[8:length].rstrip(b" ")
    return Case(name, fault, at, samples.framed(respell(text), RUN[length:]))


def inner_respelled(name: str, fault: Fault, at: str, respell: Callable[[str], str]) -> Case:
    """A segment whose description ``respell`` has edited as text."""
    length = header_length(RUN)
    table = json.loads(RUN[8:length])
    table["__metadata__"]["kvbaton"] = respell(table["__metadata__"]["kvbaton"])
    return Case(name, fault, at, samples.framed(samples.spell(table), RUN[length:]))


def field(name: str, value: Any) -> Callable[[Any, Any], None]:
    """Set a field of the description."""

    def change(description: Any, table: Any) -> None:
        description[name] = value

    return change


def in_range(index: int, **values: Any) -> Callable[[Any, Any], None]:
    """Set fields of a range."""

    def change(description: Any, table: Any) -> None:
        description["ranges"][index].update(values)

    return change


def in_rope(**values: Any) -> Callable[[Any, Any], None]:
    """Set fields of the RoPE record."""

    def change(description: Any, table: Any) -> None:
        description["layout"]["ropes"][0].update(values)

    return change


def in_layout(**values: Any) -> Callable[[Any, Any], None]:
    """Set fields of the layout."""

    def change(description: Any, table: Any) -> None:
        description["layout"].update(values)

    return change


def in_spec(index: int, **values: Any) -> Callable[[Any, Any], None]:
    """Set fields of a layer record."""

    def change(description: Any, table: Any) -> None:
        description["layout"]["specs"][index].update(values)

    return change


def tensor(name: str, **values: Any) -> Callable[[Any, Any], None]:
    """Set fields of a tensor's entry."""

    def change(description: Any, table: Any) -> None:
        table[name].update(values)

    return change


def without(name: str) -> Callable[[Any, Any], None]:
    """Leave a tensor out."""

    def change(description: Any, table: Any) -> None:
        del table[name]

    return change


def with_tensor(name: str, offsets: list[int]) -> Callable[[Any, Any], None]:
    """Add a tensor of bytes."""

    def change(description: Any, table: Any) -> None:
        table[name] = {"data_offsets": offsets, "dtype": "U8", "shape": [offsets[1] - offsets[0]]}

    return change


def pad_not_zero() -> Case:
    """A pad byte that is not zero although the digest was made over it."""
    description, table, body = samples.taken_apart(RUN)
    body = body[:30] + b"\x01" + body[31:]
    description["ranges"][0]["digest"] = range_digest(body[:128])
    return Case(
        "pad", Fault.PAD_NOT_ZERO, "$.ranges[0]", samples.header_file(description, table, body)
    )


def oversized() -> Case:
    """Sizes that add up to more than any segment may have."""
    description, table, body = samples.taken_apart(RUN)
    huge = (1 << 40) - 64
    description["ranges"] = [
        description["ranges"][0] | {"stop": huge},
        description["ranges"][1] | {"start": huge, "stop": huge + 64},
    ]
    return Case("body", Fault.TOO_LARGE, "$.ranges", samples.header_file(description, table, body))


K0 = '$["layer.0000.k"]'
SPECS = json.loads(samples.spell(samples.taken_apart(RUN)[0]["layout"]["specs"]))
CASES = [
    Case("cut length field", Fault.TRUNCATED, "$.header", RUN[:5]),
    Case("empty file", Fault.TRUNCATED, "$.header", b""),
    Case("cut header", Fault.TRUNCATED, "$.header", RUN[:500]),
    Case("cut body", Fault.TRUNCATED, "$.ranges", RUN[:-1]),
    Case("longer body", Fault.TRAILING_BYTES, "$.ranges", RUN + b"\0"),
    Case("huge length", Fault.TOO_LARGE, "$.header", b"\xff" * 8 + RUN[8:]),
    Case("odd length", Fault.LENGTH_FIELD, "$.header", b"\x39" + RUN[1:]),
    oversized(),
    respelled("text after the JSON", Fault.TRAILING_BYTES, "$", lambda t: t + b"{}"),
    respelled("not ASCII", Fault.NOT_UTF8, "$", lambda t: t.replace(b"layer", b"la\xffer", 1)),
    respelled("no JSON", Fault.NOT_JSON, "$", lambda t: t.replace(b":", b";", 1)),
    respelled("open JSON", Fault.TRUNCATED, "$", lambda t: t[:-1]),
    respelled("no text", Fault.TRUNCATED, "$", lambda t: b""),
    respelled("a list", Fault.WRONG_TYPE, "$.header", lambda t: b"[]"),
    respelled("whitespace", Fault.NOT_CANONICAL, "$", lambda t: t.replace(b":", b": ", 1)),
    respelled(
        "too much padding",
        Fault.NOT_CANONICAL,
        "$.header",
        lambda t: t + b" " * (-(8 + len(t)) % 64 + 64),
    ),
    respelled("escape", Fault.NOT_CANONICAL, "$", lambda t: t.replace(b"U8", b"\\u00558", 1)),
    respelled(
        "twice the same tensor",
        Fault.DUPLICATE_KEY,
        "$",
        lambda t: t[:-1] + t[t.index(b',"layer.0002.v"') :],
    ),
    respelled(
        "deep", Fault.TOO_DEEP, "$", lambda t: t[:-1] + b',"z":' + b"[" * 9999 + b"]" * 9999 + b"}"
    ),
    respelled("a float", Fault.NOT_AN_INTEGER, "$", lambda t: t.replace(b"[0,20]", b"[0,2e1]")),
    respelled("NaN", Fault.NOT_AN_INTEGER, "$", lambda t: t.replace(b"[0,20]", b"[0,NaN]")),
    respelled(
        "a vast integer",
        Fault.OUT_OF_RANGE,
        "$",
        lambda t: t.replace(b"[0,20]", b"[0," + b"9" * 5000 + b"]"),
    ),
    respelled(
        "65 bits",
        Fault.OUT_OF_RANGE,
        "$.layer.0000.k.data_offsets[1]",
        lambda t: t.replace(b"[0,20]", b"[0,18446744073709551616]"),
    ),
    inner_respelled("order", Fault.NOT_CANONICAL, "$", lambda t: '{"zero":0,' + t[1:]),
    inner_respelled(
        "twice the same field", Fault.DUPLICATE_KEY, "$", lambda t: '{"codecs":0,' + t[1:]
    ),
    inner_respelled("not ASCII inside", Fault.NOT_UTF8, "$",
                    lambda t: t.replace("tiny", "t\u00eeny")),
    inner_respelled("deep", Fault.TOO_DEEP, "$.producer.engine" + "[0]" * 62,
                    lambda t: t.replace('"tiny"', "[" * 70 + "]" * 70)),
    changed("format", Fault.UNKNOWN_FORMAT, "$.format", field("format", 2)),
    changed("format type", Fault.WRONG_TYPE, "$.format", field("format", True)),
    changed("kind", Fault.UNKNOWN_KIND, "$.kind", field("kind", "linear")),
    changed(
        "layer kind", Fault.UNKNOWN_KIND, "$.layout.specs[0].kind", in_spec(0, kind="linear")
    ),
    changed("pairing", Fault.UNKNOWN_KIND, "$.layout.ropes[0].pairing", in_rope(pairing="both")),
    changed("fidelity", Fault.UNKNOWN_KIND, "$.fidelity.class",
            field("fidelity", {"calibration": None, "class": "good", "codec": "raw"})),
    changed("extra field", Fault.UNKNOWN_FIELD, "$.salt", field("salt", "")),
    changed("extra range field", Fault.UNKNOWN_FIELD, "$.ranges[1].crc", in_range(1, crc=0)),
    changed("extra tensor field", Fault.UNKNOWN_FIELD, f"{K0}.crc", tensor("layer.0000.k", crc=0)),
    changed("parameter tag", Fault.UNKNOWN_FIELD, "$.layout.ropes[0].parameters.factor.real",
            in_rope(parameters={"factor": {"real": "0x1.0000000000000p+2"}})),
    changed("missing field", Fault.MISSING_FIELD, "$.prefix_key",
            lambda d, t: d.pop("prefix_key")),
    changed("missing codec name", Fault.MISSING_FIELD, "$.codecs[0][0].name",
            field("codecs", [[{"bits": 8}]])),
    changed("function type", Fault.WRONG_TYPE, "$.function", field("function", 7)),
    changed("ranges type", Fault.WRONG_TYPE, "$.ranges", field("ranges", {})),
    changed("bool as integer", Fault.WRONG_TYPE, "$.first", field("first", False)),
    changed("bool as offset", Fault.WRONG_TYPE, f"{K0}.data_offsets[0]",
            tensor("layer.0000.k", data_offsets=[False, 20])),
    changed("bool as axis", Fault.WRONG_TYPE, f"{K0}.shape[0]",
            tensor("layer.0000.k", shape=[True, 5, 2])),
    changed("base type", Fault.WRONG_TYPE, "$.layout.ropes[0].base", in_rope(base="ten")),
    changed("upper-case digest", Fault.OUT_OF_RANGE, "$.function", field("function", "F0" * 32)),
    changed("no tokens", Fault.OUT_OF_RANGE, "$.count", field("count", 0)),
    changed("last position", Fault.OUT_OF_RANGE, "$.count", field("count", 1 << 31)),
    changed("negative position", Fault.OUT_OF_RANGE, "$.first", field("first", -1)),
    changed("million layers", Fault.OUT_OF_RANGE, "$.layout.layers[1][1]",
            in_layout(layers=[[0, 1], [1, 1_000_000]])),
    changed("rope index", Fault.OUT_OF_RANGE, "$.layout.specs[1].rope", in_spec(1, rope=1)),
    changed("window of a full layer", Fault.OUT_OF_RANGE, "$.layout.specs[0].window",
            in_spec(0, window=4)),
    changed("codec index", Fault.OUT_OF_RANGE, "$.ranges[0].k_codec", in_range(0, k_codec=1)),
    changed("control character", Fault.OUT_OF_RANGE, "$.producer.engine",
            field("producer", {"engine": "\x1b[2J"})),
    changed("layer run split", Fault.NOT_CANONICAL, "$.layout.layers",
            in_layout(layers=[[0, 1], [0, 1], [1, 1]])),
    changed("layer record twice", Fault.NOT_CANONICAL, "$.layout.layers",
            in_layout(layers=[[0, 1], [1, 1], [2, 1]], specs=[*SPECS, SPECS[0]])),
    changed("codec unused", Fault.NOT_CANONICAL, "$.codecs",
            field("codecs", [[{"name": "raw"}], [{"name": "raw"}]])),
    changed("float spelling", Fault.NOT_CANONICAL, "$.layout.ropes[0].base",
            in_rope(base="0x1.388p+13")),
    changed("infinite base", Fault.NOT_FINITE, "$.layout.ropes[0].base", in_rope(base="inf")),
    changed("base not a number", Fault.NOT_FINITE, "$.layout.ropes[0].base", in_rope(base="nan")),
    changed("cache dtype", Fault.UNKNOWN_DTYPE, "$.layout.dtype", in_layout(dtype="F8_E4M3")),
    changed("tensor dtype", Fault.UNKNOWN_DTYPE, f"{K0}.dtype",
            tensor("layer.0000.k", dtype="C64")),
    changed("codec", Fault.UNKNOWN_CODEC, "$.codecs[0]", field("codecs", [[{"name": "gzip"}]])),
    changed("codec with a parameter", Fault.UNKNOWN_CODEC, "$.codecs[0]",
            field("codecs", [[{"bits": 16, "name": "raw"}]])),
    changed("tensor of another layer", Fault.UNKNOWN_TENSOR, '$["layer.0009.k"]',
            with_tensor("layer.0009.k", [0, 20])),
    changed("side tensor of raw", Fault.UNKNOWN_TENSOR, '$["layer.0000.k.scale"]',
            with_tensor("layer.0000.k.scale", [0, 4])),
    changed("path as a name", Fault.UNKNOWN_TENSOR, '$["../../etc/passwd"]',
            with_tensor("../../etc/passwd", [0, 20])),
    changed("missing tensor", Fault.MISSING_TENSOR, '$["layer.0002.v"]', without("layer.0002.v")),
    changed("missing pad", Fault.MISSING_TENSOR, '$["layer.0002.v-pad"]',
            without("layer.0002.v-pad")),
    changed("shape", Fault.SHAPE_MISMATCH, f"{K0}.shape", tensor("layer.0000.k", shape=[1, 2, 5])),
    changed("axes", Fault.SHAPE_MISMATCH, f"{K0}.shape", tensor("layer.0000.k", shape=[10])),
    changed("other dtype", Fault.SHAPE_MISMATCH, f"{K0}.dtype",
            tensor("layer.0000.k", dtype="F16")),
    changed("size", Fault.SIZE_MISMATCH, f"{K0}.data_offsets",
            tensor("layer.0000.k", data_offsets=[0, 64])),
    changed("backwards", Fault.SIZE_MISMATCH, f"{K0}.data_offsets",
            tensor("layer.0000.k", data_offsets=[0, 0])),
    changed("gap", Fault.GAP, '$["layer.0000.v"].data_offsets',
            tensor("layer.0000.v", data_offsets=[128, 148])),
    changed("overlap", Fault.OVERLAP, '$["layer.0000.v"].data_offsets',
            tensor("layer.0000.v", data_offsets=[0, 20])),
    pad_not_zero(),
    changed("no ranges", Fault.OUT_OF_RANGE, "$.ranges", field("ranges", [])),
    changed("a layer without a range", Fault.RANGES, "$.ranges", lambda d, t: d["ranges"].pop()),
    changed("layers in another order", Fault.RANGES, "$.ranges[0]",
            lambda d, t: d["ranges"].reverse()),
    changed("ranges apart", Fault.RANGES, "$.ranges[1]", in_range(1, start=192, stop=320)),
    changed("range unaligned", Fault.RANGES, "$.ranges[0]", in_range(0, stop=100)),
    changed("range too long", Fault.RANGES, "$.ranges[1]", in_range(1, stop=320)),
    changed("full layers in a window segment", Fault.RANGES, "$.ranges", field("kind", "window")),
    changed("range of other tokens", Fault.TOKENS, "$.ranges[1]", in_range(1, count=4)),
    changed("window too long", Fault.TOKENS, "$.ranges[0]", in_spec(1, window=3), base=WINDOW),
    changed("window ends early", Fault.TOKENS, "$.ranges[0]", field("count", 4), base=WINDOW),
    changed("digest of a layer", Fault.DIGEST, "$.ranges[1]", in_range(1, digest="00" * 32)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_each_bad_segment_has_its_fault_and_place(case: Case) -> None:
    """A segment that breaks one rule is refused with that rule's fault at that place."""
    if case.name == "range too long":
        case = Case(case.name, case.fault, case.at, case.data + bytes(64))
    with pytest.raises(FormatError) as caught:
        read_all(case.data)
    assert (caught.value.fault, caught.value.at) == (case.fault, case.at)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_with_an_address_nothing_bad_is_even_parsed(case: Case) -> None:
    """Under a promised address a changed header is a digest mismatch, whatever it says."""
    whole = case.data[: header_length(RUN)]
    with pytest.raises(FormatError) as caught:
        parse_header(
            whole,
            file_size=len(case.data),
            address=samples.run_segment().address,
            keys=samples.KEYS,
        )
    if whole != RUN[: len(whole)] or len(whole) < header_length(RUN):
        assert isinstance(caught.value, DigestMismatch)
        assert caught.value.at == "$.header"


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_the_fast_reader_accepts_nothing_that_the_careful_one_refuses(case: Case) -> None:
    """Where the fast reader returns a header at all, reading entry by entry gives the same one."""
    length = int.from_bytes(case.data[:8], "little") + 8
    whole = case.data[:length]
    fast = segment._read_expected(whole, raw_storage)
    if fast is not None:
        assert segment._read_entries(whole, fast.size_bytes, raw_storage) == fast


@pytest.mark.parametrize("data", [RUN, WINDOW], ids=["run", "window"])
def test_every_single_flipped_bit_of_a_segment_is_found(data: bytes) -> None:
    """Any flipped bit of length field, header, padding or body is an error that names a place."""
    promised = samples.run_segment() if data is RUN else samples.window_segment()
    body = header_length(data)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError) as caught:
            read_all(bytes(broken), address=promised.address)
        if bit // 8 < body:
            assert caught.value.at == "$.header"
        else:
            index = (bit // 8 - body) // 128 if data is RUN else 0
            layer = promised.header.ranges[index].layer
            assert caught.value.at == f"$.ranges[{index}]"
            assert f"layer {layer} " in caught.value.sentence


@pytest.mark.parametrize("length", range(0, len(RUN), 61))
def test_a_segment_cut_anywhere_is_refused(length: int) -> None:
    """A file that ends early is refused, and never read beyond its end."""
    with pytest.raises(FormatError):
        read_all(RUN[:length], address=samples.run_segment().address)


def test_a_good_segment_passes() -> None:
    """The segments that the cases start from are read without an error."""
    assert read_all(RUN, address=samples.run_segment().address) == samples.run_segment().header
    assert read_all(WINDOW, address=samples.window_segment().address).span.first == 2


def test_a_huge_length_field_is_refused_before_anything_is_read_for_it() -> None:
    """A length field that claims 2**63 bytes is refused by the first eight bytes alone."""
    with pytest.raises(FormatError) as caught:
        header_length((1 << 63).to_bytes(8, "little"))
    assert caught.value.fault is Fault.TOO_LARGE


def test_an_address_of_another_domain_does_not_verify() -> None:
    """The same bytes have another address under another domain's keys."""
    other = type(samples.KEYS)(bytes(32))
    assert other.segment_address(RUN[: header_length(RUN)]) != samples.run_segment().address


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE batons; --", "<script>alert(1)</script>", "../../etc/passwd", "%s{0}"]
)
def test_names_in_a_segment_are_inert(name: str) -> None:
    """SQL, HTML, paths and format strings in a producer record come back as the same text."""
    description, table, body = samples.taken_apart(RUN)
    description["producer"] = {"engine": name}
    header = read_all(samples.header_file(description, table, body))
    assert header.producer == (("engine", name),)
