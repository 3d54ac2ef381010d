"""The result of ``bench seals`` as tables."""

from __future__ import annotations

from kvbaton.bench.figures import PHASES
from kvbaton.bench.report import Table, target_row
from kvbaton.bench.seals import TAKES
from kvbaton.types import JSON


def seal_tables(result: JSON) -> tuple[Table, ...]:
    """Whole takes, where their time goes, the parts of a seal, and the targets."""
    rows, seals = result["rows"], result["seals"]
    targets = tuple(target_row(one) for one in result["summary"]["targets"])
    return (
        Table(
            "Time to the first token with and without what makes a baton trusted, milliseconds",
            ("dtype", "context", *TAKES, "floor", "prefill", "with / floor", "without / floor",
             "encrypted / floor", "with / without", "layer 0 / prefill"),
            tuple(_take(row) for row in rows),
            labels=2,
        ),
        Table(
            "Where the time of a take goes, milliseconds",
            ("dtype", "context", "take", *(_NAMES.get(name, name) for name in PHASES)),
            tuple(_phases(row, take) for row in rows for take in TAKES),
            labels=3,
        ),
        Table(
            "A signature by itself, milliseconds",
            ("dtype", "tokens", "segments", "manifest", "sign", "encoding aside", "verify",
             "envelope", "envelope and signature", "manifest"),
            tuple(_signature(one) for one in seals),
        ),
        Table(
            "Layer ranges by themselves, GB/s",
            ("dtype", "bytes", "range", "digest", "BLAKE3", "digest / BLAKE3", "encrypt",
             "decrypt"),
            tuple(_speeds(one) for one in seals),
        ),
        Table("Targets", ("target", "limit", "measured", "met"), targets),
    )  # fmt: skip


_NAMES = {"probe": "layer 0", "first_forward": "first forward"}


def _take(row: JSON) -> tuple[str, ...]:
    return (
        row["dtype"],
        f"{row['tokens']:,}",
        *(_ms(row[f"{take}_s"]) for take in TAKES),
        _ms(row["floor_s"]),
        _ms(row["prefill_s"]),
        *(f"{row[f'over_floor_{take}']:.2f}x" for take in ("with", "without", "encrypted")),
        f"{row['with_over_without']:.2f}x",
        f"{row['layer0_share_of_prefill']:.2%}",
    )


def _phases(row: JSON, take: str) -> tuple[str, ...]:
    phases = row["phases"][take]
    return row["dtype"], f"{row['tokens']:,}", take, *(_ms(phases[name]) for name in PHASES)


def _signature(one: JSON) -> tuple[str, ...]:
    return (
        one["dtype"],
        f"{one['tokens']:,}",
        f"{one['segments']}",
        f"{one['manifest_bytes']:,} B",
        *(
            f"{one[f'{name}_ms']:.2f}"
            for name in (
                "sign", "sign_alone", "verify", "parse_envelope", "verify_alone", "parse_manifest",
            )
        ),
    )  # fmt: skip


def _speeds(one: JSON) -> tuple[str, ...]:
    return (
        one["dtype"],
        f"{one['kv_bytes'] / 1e6:.1f} MB",
        f"{one['range_bytes'] / 1e3:.0f} kB",
        f"{one['hash_gb_s']:.2f}",
        f"{one['blake3_gb_s']:.2f}",
        f"{one['hash_over_blake3']:.2f}",
        f"{one['encrypt_gb_s']:.2f}",
        f"{one['decrypt_gb_s']:.2f}",
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.1f}"
