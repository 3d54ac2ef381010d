"""The result of ``bench policy`` as tables."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, median

from kvbaton.bench.report import Table
from kvbaton.types import JSON

TARGET_SHARE, TARGET_REGRET = 0.95, 0.03


def policy_tables(result: JSON) -> tuple[Table, ...]:
    """Choices by length and profile, and the whole against who never chooses."""
    return (_by_group(result["rows"]), _whole(result))


def _by_group(rows: list[JSON]) -> Table:
    groups: dict[tuple[int, str], list[JSON]] = defaultdict(list)
    for row in rows:
        groups[row["tokens"], row["profile"]].append(row)
    return Table(
        "Choices by length and profile",
        ("tokens", "profile", "text", "cache, fastest line", "MB/s from", "to", "right", "of",
         "by text", "mean regret", "prediction off by"),
        tuple(_group(*key, several) for key, several in groups.items()),
        labels=2,
    )  # fmt: skip


def _group(tokens: int, profile: str, rows: list[JSON]) -> tuple[str, ...]:
    lines = [row["bandwidth_mb_s"] for row in rows]
    return (
        f"{tokens:,}",
        profile,
        f"{1e3 * rows[0]['text_s']:.0f} ms",
        f"{1e3 * max(rows, key=lambda row: float(row['bandwidth_mb_s']))['cache_s']:.0f} ms",
        f"{min(lines):.3g}",
        f"{max(lines):.3g}",
        str(sum(row["right"] for row in rows)),
        str(len(rows)),
        str(sum(row["chosen"] == "text" for row in rows)),
        _percent(fmean(row["regret"] for row in rows)),
        _percent(median(abs(row["predicted_s"] / row["actual_s"] - 1) for row in rows)),
    )


def _whole(result: JSON) -> Table:
    rows = result["rows"]
    near = [row for row in rows if row["near"]]
    share, regret = result["best_choice_share"], result["mean_regret"]
    return Table(
        "The whole grid",
        ("figure", "value", "target"),
        (
            ("points", str(len(rows)), ""),
            ("within twice of break-even", _percent(result["near_share"]), "a third"),
            ("right choices", _percent(share), f"at least {_percent(TARGET_SHARE)}"),
            ("right choices near break-even", _share(near), ""),
            ("mean regret", _percent(regret), f"below {_percent(TARGET_REGRET)}"),
            ("mean regret of always text", _percent(result["always_text"]), ""),
            ("mean regret of always the cache", _percent(result["always_cache"]), ""),
            ("prediction off by, median", _percent(result["prediction_error"]), ""),
        ),
    )


def _share(rows: list[JSON]) -> str:
    return _percent(fmean(row["right"] for row in rows)) if rows else "-"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
