"""The result of ``bench codecs`` as tables, one per shape and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from kvbaton.bench.report import Table
from kvbaton.types import JSON

_HEADINGS = ("codec", "encode", "decode", "bits per element", "largest change")


def codec_tables(result: JSON) -> tuple[Table, ...]:
    """Speeds in GB/s of the cache's bytes; in brackets as a part of memcpy's."""
    return tuple(_tables(result["rows"]))


def _tables(rows: list[JSON]) -> Iterator[Table]:
    for (shape, dtype), several in groupby(rows, key=lambda row: (row["shape"], row["dtype"])):
        held = list(several)
        title = f"{shape}, {dtype}: GB/s (part of memcpy's {held[0]['memcpy_gb_s']:.1f} GB/s)"
        yield Table(title, _HEADINGS, tuple(_cells(row) for row in held))


def _cells(row: JSON) -> tuple[str, ...]:
    return (
        row["codec"],
        f"{row['encode_gb_s']:.2f} ({row['encode_over_memcpy']:.2f})",
        f"{row['decode_gb_s']:.2f} ({row['decode_over_memcpy']:.2f})",
        f"{row['bits_per_element']:.2f}",
        f"{row['max_abs_error']:.3g}",
    )
