"""A result of an audit, written by hand: every part is there, with values that tests know."""

from __future__ import annotations

import math
from typing import Any

from kvbaton.types import JSON

MARGIN_POINTS = 5.0

# name: label, role, reference, ttft ratio, e2e ratio, points, its interval, KL, flips, bytes
ROWS: dict[str, tuple[Any, ...]] = {
    "T0": ("text only", "reference", None, None, None, None, None, None, None, 0),
    "T1": (
        "the prompt's KV",
        "candidate",
        "T0",
        0.31,
        0.72,
        0.0,
        [-1.8, 1.8],
        1.1e-3,
        0.004,
        4.1e7,
    ),
    "T2": ("the message's KV", "candidate", "T0", 0.94, 0.97, 0.5, [-1.2, 2.2], 9e-4, 0.003, 1.2e6),
    "T3": ("all of the KV", "candidate", "T0", 0.12, 0.55, 0.5, [-1.4, 2.4], 1.2e-3, 0.005, 4.3e7),
    "T3:near-lossless": (
        "all, near-lossless",
        "candidate",
        "T0",
        0.13,
        0.56,
        0.0,
        [-2.0, 2.0],
        2.4e-3,
        0.008,
        2.2e7,
    ),
    "T3:compact": (
        "all, compact",
        "candidate",
        "T0",
        0.15,
        0.57,
        -1.0,
        [-3.3, 1.3],
        0.02,
        0.03,
        1.1e7,
    ),
    "T3:tiny": ("all, tiny", "candidate", "T0", 0.16, 0.58, -9.5, [-13.8, -5.2], 0.3, 0.14, 5.6e6),
    "S0:all": ("text of the slices", "reference", None, None, None, None, None, None, None, 0),
    "S:all": ("slices", "candidate", "S0:all", 0.2, 0.61, -2.5, [-6.5, 1.5], 0.12, 0.09, 3.9e7),
    "T4": (
        "another conversation",
        "control",
        "T0",
        0.12,
        0.55,
        -94.0,
        [-97, -90],
        6.2,
        0.71,
        4.3e7,
    ),
    "T5": ("zeroed", "control", "T0", 0.12, 0.55, -95.5, [-98, -92], 8.9, 0.93, 4.3e7),
    "T5-shuffled": ("shuffled", "control", "T0", 0.12, 0.55, -91.0, [-95, -86], 5.1, 0.66, 4.3e7),
}

MANY = (
    "T0", "T1", "T2", "T3", "T3:near-lossless", "T3:compact", "T3:tiny", "T3:one-bit-residual",
    "S:prompt", "S:prompt+repair", "S:generated", "S:generated+repair", "S:all", "S:all+repair",
    "Z", "T4", "T5", "T5-shuffled",
)  # fmt: skip
"""Names of a long audit: 14 candidates, with a reference and controls."""

QUALITY = {"T3:tiny": "harmful", "S:all": "undecided"}


def sample_result(**changes: Any) -> JSON:
    """The result; keywords replace parts of it."""
    result = {
        "format": "kvbaton audit result 1",
        "seed": 7,
        "units": 40,
        "questions": 200,
        "pairs": ["smollm2-135m/BF16"],
        "model": "smollm2-135m",
        "dtype": "bfloat16",
        "environment": {
            "kvbaton": "0.1.0",
            "python": "3.11.9",
            "cpu": "a made-up processor",
            "cores": 2,
            "memory_bytes": 8_000_000_000,
            "load": 0.42,
        },
        "tasks": {"name": "private", "version": 1, "digest": "ab" * 32},
        "plan": {
            "digest": "cd" * 32,
            "margin_points": MARGIN_POINTS,
            "icc": 0.3,
            "alpha": 0.05,
            "repeats": 3,
            "warm_up": 2,
        },
        "noise_floor_kl": 1.3e-3,
        "noise_floor_flips": 0.006,
        "treatments": {name: _treatment(name, *row) for name, row in ROWS.items()},
        "content": {
            "points": 94.5,
            "ci_points": [91.0, 97.5],
            "verdict": "transferred",
            "why": "The whole cache answers 94.5 points more than a wrong one.",
        },
        "strata": _strata(),
        "mixed_model": {
            "treatments": {
                "T3": {"ratio": 0.121, "ci": [0.114, 0.129], "p": 1e-40, "p_holm": 1e-39}
            },
            "groups": {"unit": 0.35, "pair": None, "rest": 0.08},
            "converged": True,
            "why": "",
        },
        "attribution": {
            "T1": _gain(0.52, 0.0, -0.011, 0.001, -0.016, 0.002),
            "T3": _gain(0.71, 0.0, -0.012, 0.001, -0.018, 0.003),
            "Z": _gain(0.69, 0.83, -0.012, 0.001, -0.018, 0.002),
        },
        "zero_decode": {
            "e2e_ratio": 0.41,
            "ci": [0.38, 0.44],
            "e2e_ratio_t0": 0.3,
            "decode_s": 0.83,
        },
        "profile": {
            "T0": [{"name": "aten::mm", "share": 0.71, "seconds": 0.58}],
            "T3": [{"name": "aten::mm", "share": 0.44, "seconds": 0.04}],
        },
        "break_even": {
            name: {
                "tokens": tokens,
                "ci": [0.8 * tokens, 1.25 * tokens],
                "points": [
                    {
                        "tokens": n,
                        "ratio": _ratio(n, tokens),
                        "ci": _around(_ratio(n, tokens), 0.08),
                    }
                    for n in (32, 64, 128, 256, 512, 1024, 2048, 4096)
                ],
                "why": "",
            }
            for name, tokens in (("T3", 110), ("T3:compact", 150), ("T3:tiny", 160))
        },
        "break_even_tokens": 110,
        "flip_examples": _flips(),
        "failed": [
            {
                "pair": "smollm2-135m/BF16",
                "treatment": "T3:tiny-2bit",
                "what": "hand-off",
                "code": "not-calibrated",
                "sentence": "the profile `tiny-2bit` was not calibrated on this model",
                "count": 40,
                "unit": "u001",
            }
        ],
        "warnings": ["The machine was busy during 3 trials; they are in the stratum of high load."],
        "overhead_share": 0.011,
        "wall_s": 812.0,
        "method": {
            "intervals": "Bootstrap over units, 10,000 draws; exact where no pair differs.",
            "tests": ["McNemar's exact test.", "Two one-sided tests against the margin."],
            "verdicts": "Equivalent if the 90% interval lies inside the margin.",
            "versions": {"scipy": "1.17.1", "statsmodels": "0.15.0", "torch": "2.9.1"},
        },
        "samples": {name: _samples(0.82 * (row[3] or 1.0)) for name, row in ROWS.items()},
    }
    return {**result, **changes}


def _samples(median: float) -> list[float]:
    """120 seconds around a median, spread as a logistic distribution is."""
    shares = ((i + 0.5) / 120 for i in range(120))
    return [median * (share / (1 - share)) ** 0.12 for share in shares]


def _around(ratio: float, share: float) -> list[float]:
    return [ratio * (1 - share), ratio * (1 + share)]


def _ratio(tokens: int, even: float) -> float:
    return float(0.06 + 0.94 * (even / tokens) ** 0.8)


def many_result() -> JSON:
    """An audit of many treatments, whose bytes, ratios and answers lie close together."""
    result = sample_result()
    rows = {name: ROWS.get(name, ROWS["S:all"]) for name in MANY}
    result["treatments"] = {name: _treatment(name, *row) for name, row in rows.items()}
    for index, name in enumerate(MANY[1:15]):
        one = result["treatments"][name]
        one.update(bytes_moved=4e7 * 1.04**index, kl_multiple=1.1 + 0.05 * index)
    result["samples"] = {name: _samples(0.82 * (row[3] or 1.0)) for name, row in rows.items()}
    result["attribution"] = dict.fromkeys(MANY[1:15], result["attribution"]["T3"])
    even = result["break_even"]["T3"]
    result["break_even"] = dict.fromkeys(MANY[1:15], even)
    return result


def _percentiles(ratio: float) -> JSON:
    return {"p50": 0.82 * ratio, "p90": 1.13 * ratio, "p99": 1.42 * ratio}


def _treatment(
    name: str,
    label: str,
    role: str,
    reference: str | None,
    ttft: float | None,
    e2e: float | None,
    points: float | None,
    bounds: list[float] | None,
    kl: float | None,
    flips: float | None,
    moved: float,
) -> JSON:
    compared = reference is not None
    accuracy = 0.955 + (points or 0) / 100
    quality = QUALITY.get(name, "harmful" if role == "control" else "equivalent")
    verdict = {"equivalent": "pays"}.get(quality, quality)
    return {
        "label": label,
        "role": role,
        "reference": reference,
        "units": 40,
        "questions": 200,
        "timed": 120,
        "ttft_ratio": ttft,
        "ttft_ratio_ci": _around(ttft, 0.055) if ttft else None,
        "ttft_s": _percentiles(ttft or 1.0),
        "e2e_ratio": e2e,
        "e2e_ratio_ci": _around(e2e, 0.03) if e2e else None,
        "e2e_s": _percentiles(2.1 * (e2e or 1.0)),
        "fixed_ratio": e2e,
        "fixed_ratio_ci": _around(e2e, 0.04) if e2e else None,
        "tokens_per_s": 48.2,
        "accuracy": accuracy,
        "accuracy_reference": 0.955 if compared else None,
        "accuracy_t0": 0.955 if compared else None,
        "accuracy_difference_points": points,
        "accuracy_difference_ci_points": bounds,
        "equivalence_ci_points": bounds,
        "interval": "t" if compared else None,
        "bound_units_only_points": 7.2 if compared else None,
        "score": accuracy,
        "score_reference": 0.955 if compared else None,
        "kl": kl,
        "kl_multiple": kl / 1.3e-3 if kl is not None else None,
        "flips": flips,
        "discordant": {"lost": 3 if compared else 0, "gained": 4 if compared else 0},
        "tests": _tests(compared),
        "effect_size": {
            "cliffs_delta": -0.97 if compared else None,
            "rank_biserial": -1.0 if compared else None,
            "cohen_h": 0.02 if compared else None,
            "odds_ratio": 1.3 if compared else None,
        },
        "routes": {"baton": 118, "text": 2} if compared else {"text": 120},
        "reasons": {"segment-missing": 2} if compared else {},
        "fallback_share": 2 / 120 if compared else 0.0,
        "as_treated": {
            "timed": 118,
            "questions": 200,
            "ttft_ratio": ttft,
            "ttft_ratio_ci": None,
            "accuracy": accuracy,
            "accuracy_difference_points": points,
        },
        "bytes_moved": moved,
        "computed_tokens": 24.0 if compared else 1890.0,
        "reused_tokens": 1866.0 if compared else 0.0,
        "flops": 5.1e11 * (ttft or 1.0),
        "flops_ratio": ttft,
        "peak_bytes": None,
        "quality_verdict": quality if compared else "",
        "speed_verdict": "faster" if compared else "",
        "verdict": verdict if compared else "",
        "why": f"{name} is judged by its interval against the margin." if compared else "",
        "units_needed": 130 if quality == "undecided" else None,
    }


def _tests(compared: bool) -> JSON:
    keys = ("mcnemar_p", "wilcoxon_p", "paired_t_p", "tost_p")
    values = dict.fromkeys(keys, 0.0004 if compared else None)
    return {
        **values,
        **{f"{key}_holm": value for key, value in values.items()},
        "notes": ["Wilcoxon speaks for speed: log ratios are not normal."] if compared else [],
    }


def _strata() -> list[JSON]:
    groups = [
        ("length", "200-500"),
        ("length", "500-1500"),
        ("length", "1500-6000"),
        ("kind", "facts"),
        ("kind", "tables"),
        ("relevance", "high"),
        ("relevance", "none"),
        ("language", "en"),
        ("language", "zh"),
        ("load", "low"),
        ("load", "high"),
    ]
    return [
        {
            "by": by,
            "value": value,
            "low": None,
            "high": None,
            "treatment": "T3",
            "units": 8 + 2 * i,
            "questions": 5 * (8 + 2 * i),
            "ttft_ratio": 0.4 / (1 + i),
            "ttft_ratio_ci": _around(0.4 / (1 + i), 0.1),
            "accuracy": 0.95,
            "accuracy_t0": 0.96,
            "accuracy_difference_points": -1.0,
            "accuracy_difference_ci_points": [-9.0 + i / 2, 7.0 - i / 2],
            "quality_verdict": "undecided" if i < 8 else "equivalent",
            "speed_verdict": "faster",
            "verdict": "undecided" if i < 8 else "pays",
            "why": "",
            "units_needed": math.ceil(120 / (1 + i)) if i < 8 else None,
        }
        for i, (by, value) in enumerate(groups)
    ]


def _gain(*parts: float) -> JSON:
    keys = (
        "receiver_prefill_s",
        "sender_decode_s",
        "allocation_s",
        "tokenization_s",
        "transport_s",
        "other_s",
    )
    return {**dict(zip(keys, parts, strict=True)), "total_s": sum(parts), "shares": {}}


def _flips() -> list[JSON]:
    return [
        {
            "unit": "u003",
            "treatment": "T3:tiny",
            "question": "What is the code of the vault?",
            "kind": "lost",
            "expected": "4417",
            "reference_text": "The code is 4417.",
            "text": "The code is 4471.",
        },
        {
            "unit": "u011",
            "treatment": "T3:compact",
            "question": "\u8c01\u8d1f\u8d23\u5e93\u623f\uff1f",
            "kind": "gained",
            "expected": "\u738b\u82b3",
            "reference_text": "\u674e\u660e\u3002",
            "text": "\u738b\u82b3\u3002",
        },
        {
            "unit": "u020",
            "treatment": "T3:tiny",
            "question": "Which function closes the file, and in which order are the others called?",
            "kind": "lost",
            "expected": "close_all",
            "reference_text": "The function `close_all` closes it; before it `flush` runs.",
            "text": "The function `close_every` closes it; nothing runs before.",
        },
    ]
