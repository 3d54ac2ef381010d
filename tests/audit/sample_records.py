"""Made-up trials of an audit, with effects that are known because they were put in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kvbaton.audit.analysis.runs import Run
from kvbaton.audit.journal import FORMAT
from kvbaton.audit.plan import Plan
from kvbaton.audit.treatments import Role, treatment
from kvbaton.types import JSON


@dataclass(frozen=True)
class Effect:
    """What a treatment does, in truth.

    ``ttft_ratio`` is of medians against the reference; ``lost`` and ``gained`` are the chances that
    a question turns from right to wrong and back; ``same_unit`` is how alike the questions of a
    unit fare: a share of units decides once for all of its questions.
    """

    ttft_ratio: float = 1.0
    lost: float = 0.0
    gained: float = 0.0
    same_unit: float = 0.0
    kl: float = 1e-5
    fallback: float = 0.0


EFFECTS: dict[str, Effect] = {
    "T0": Effect(),
    "T1": Effect(0.45),
    "T2": Effect(0.85),
    "T3": Effect(0.12),
    "T3:compact": Effect(0.15, 0.01, 0.01, kl=2e-3),
    "T4": Effect(0.12, 0.95, 0.0, kl=6.0),
    "T5": Effect(0.12, 0.97, 0.0, kl=8.0),
}
"""T3 is eight times faster and loses nothing; the controls lose all that they were asked."""


@dataclass(frozen=True)
class Sample:
    """How many trials, and how noisy."""

    units: int = 40
    questions: int = 5
    repeats: int = 3
    seed: int = 7
    accuracy: float = 0.96
    noise: float = 0.08
    """Standard deviation of log seconds within a unit."""
    spread: float = 0.35
    """The same of the units' own length and speed."""
    pair: str = "smollm2-135m/BF16"
    ladder: bool = True
    effects: Mapping[str, Effect] = field(default_factory=lambda: dict(EFFECTS))


def plan_of(sample: Sample) -> Plan:
    """The plan that belongs to a sample."""
    return Plan(
        units=sample.units,
        questions=sample.questions,
        repeats=sample.repeats,
        seed=sample.seed,
        treatments=tuple(sample.effects),
    )


def header_of(sample: Sample) -> JSON:
    """The first line of the trials."""
    return {
        "format": FORMAT,
        "plan": plan_of(sample).digest,
        "pair": sample.pair,
        "function": "f" * 64,
        "model": "smollm2-135m",
        "dtype": "bfloat16",
        "seed": sample.seed,
        "tasks": {"name": "private-facts", "version": 1, "digest": "0" * 64},
        "treatments": {
            name: {"label": known.label, "role": known.role.value, "reference": known.reference}
            for name, known in ((name, treatment(name)) for name in sample.effects)
        },
        "environment": {"kvbaton": "0.1.0", "torch": "2.9", "threads": 2, "cpu": "made up"},
    }


def records_of(sample: Sample) -> list[JSON]:
    """Header and trials, as ``trials.jsonl`` has them."""
    dice = np.random.default_rng(sample.seed)
    lines = [header_of(sample)]
    for number in range(sample.units):
        lines.extend(_unit(sample, number, dice))
    if sample.ladder:
        lines.extend(_ladder(sample, dice))
    lines.extend(_profile(name) for name in sample.effects)
    wall_s = sum(line.get("e2e_s", 0.0) for line in lines)
    session = {"kind": "session", "repeat": 0, "wall_s": wall_s, "work_s": 0.99 * wall_s}
    return [*lines, session | {"overhead_share": 0.01}]


def run_of(sample: Sample) -> Run:
    """The same as it is read."""
    header, *records = records_of(sample)
    plan = plan_of(sample)
    return Run(plan.to_json() | {"digest": plan.digest}, header, records)


def write_run(folder: Path, sample: Sample, *, lines: Iterable[JSON] | None = None) -> Path:
    """A run's folder with plan and trials."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan_of(sample).to_json()), encoding="utf-8")
    kept = records_of(sample) if lines is None else lines
    text = "".join(json.dumps(line) + "\n" for line in kept)
    (folder / "trials.jsonl").write_text(text, encoding="utf-8")
    return folder


def a_a(sample: Sample, *, lost: float = 0.02) -> Sample:
    """The same with a candidate that does nothing: as many answers are lost as gained."""
    effects = {"T0": Effect(), "T3": Effect(1.0, lost, lost)}
    return replace(sample, effects=effects)


def _unit(sample: Sample, number: int, dice: np.random.Generator) -> list[JSON]:
    unit = f"u{number:03d}"
    tokens = int(dice.choice([300, 800, 2000, 4000]) * dice.uniform(0.9, 1.1))
    base_s = tokens / 2500 * float(np.exp(dice.normal(0, sample.spread)))
    decode_s = 0.8 * float(np.exp(dice.normal(0, 0.1)))
    about = {
        "kind": "unit",
        "unit": unit,
        "task_kind": ("facts", "tables", "code-symbols")[number % 3],
        "language": ("en", "zh")[number % 4 == 3],
        "relevance": ("high", "low")[number % 5 == 4],
        "excerpt": "",
        "prompt_tokens": tokens - 48,
        "message_tokens": 48,
        "context_tokens": tokens,
        "sender": {"prefill_s": base_s, "decode_s": decode_s, "tokenize_s": tokens * 2e-6},
        "hand_off": {
            name: {"seconds": 0.009, "phases": {"encode": 0.006, "put": 0.003}, "bytes_written": 0}
            for name in sample.effects
            if not _by_text(name)
        },
    }
    right = dice.random(sample.questions) < sample.accuracy
    floor = {"kind": "floor", "unit": unit, "treatment": "T0", "kl": 1e-3, "flips": 1}
    lines: list[JSON] = [about, floor | {"positions": 16 * sample.questions}]
    for name, effect in sample.effects.items():
        lines.append(_quality(sample, unit, name, effect, right, dice))
    for repeat in range(sample.repeats):
        order = dice.permutation(len(sample.effects))
        names = list(sample.effects)
        for position, index in enumerate(order):
            lines.append(
                _timed(sample, (unit, tokens, base_s, decode_s), names[index], repeat, dice)
            )
            lines[-1]["position"] = position
    return lines


def _receipt(route: str, parts: Mapping[str, float]) -> JSON:
    return {"route": route, "reasons": [], "seconds": dict(parts), "sender_seconds": {}}


def _timed(
    sample: Sample,
    of_unit: tuple[str, int, float, float],
    name: str,
    repeat: int,
    dice: np.random.Generator,
) -> JSON:
    unit, tokens, base_s, decode_s = of_unit
    effect = sample.effects[name]
    fell = bool(dice.random() < effect.fallback)
    ratio = 1.0 if fell else effect.ttft_ratio
    noise = sample.noise * (dice.gamma(2.0) - 2.0) / np.sqrt(2.0)
    ttft_s = base_s * ratio * float(np.exp(noise))
    fixed_s = ttft_s + 16 * 0.02
    route = "text" if fell or _by_text(name) else "baton"
    shares = {"first_forward": 0.9} if route == "text" else {"get": 0.1, "first_forward": 0.6}
    return {
        "kind": "timed",
        "unit": unit,
        "treatment": name,
        "repeat": repeat,
        "ttft_s": ttft_s,
        "fixed_s": fixed_s,
        "fixed_tokens": 16,
        "e2e_s": decode_s + fixed_s + (0.009 if route == "baton" else 0.0),
        "computed_tokens": tokens if route == "text" else 24,
        "reused_tokens": 0 if route == "text" else tokens - 24,
        "bytes_moved": 0 if route == "text" else tokens * 23040,
        "route": route,
        "reasons": ["segment-missing"] if fell else [],
        "load": float(dice.uniform(0.8, 2.2)),
        "busy": float(dice.uniform(0.0, 0.1)),
        "receipt": _receipt(route, {part: ttft_s * share for part, share in shares.items()}),
    }


def _quality(
    sample: Sample,
    unit: str,
    name: str,
    effect: Effect,
    right: np.ndarray,
    dice: np.random.Generator,
) -> JSON:
    chance = dice.random(sample.questions)
    if dice.random() < effect.same_unit:
        chance[:] = chance[0]
    after = np.where(right, chance >= effect.lost, chance < effect.gained)
    is_reference = _by_text(name)
    answers = [
        {
            "question": f"q{i}",
            "text": f"{1000 + i}" if ok else "I do not know.",
            "score": float(ok),
            "right": bool(ok),
            "kl": 0.0 if is_reference else effect.kl * float(dice.uniform(0.5, 1.5)),
            "kl_max": effect.kl * 4,
            "positions": 16,
            "flips": int(bool(ok) != bool(was)),
            "new_tokens": 6,
        }
        for i, (ok, was) in enumerate(zip(after, right, strict=True))
    ]
    route = "text" if is_reference else "baton"
    return {
        "kind": "quality",
        "unit": unit,
        "treatment": name,
        "route": route,
        "flops": 1e12 * effect.ttft_ratio,
        "peak_bytes": None,
        "answers": answers,
        "receipt": _receipt(route, {}),
    }


def _ladder(sample: Sample, dice: np.random.Generator) -> list[JSON]:
    """Prefill grows with the square of length, a take with length; they meet at 100 tokens."""
    lines: list[JSON] = []
    for tokens in (32, 64, 128, 256, 1024):
        for repeat in range(5):
            for name in sample.effects:
                if name in ("T0", "T3", "T3:compact"):
                    text_s = 1e-4 * tokens + 1e-8 * tokens**2
                    seconds = text_s if name == "T0" else 0.0091 + 1e-5 * tokens
                    noise = float(np.exp(dice.normal(0, 0.03)))
                    lines.append(
                        {
                            "kind": "ladder",
                            "tokens": tokens,
                            "treatment": name,
                            "repeat": repeat,
                            "ttft_s": seconds * noise,
                            "bytes_moved": 0 if name == "T0" else tokens * 23040,
                        }
                    )
    return lines


def _by_text(name: str) -> bool:
    return treatment(name).role is Role.REFERENCE


def _profile(name: str) -> JSON:
    groups = {"attention": 0.3, "matrix products": 0.5, "allocation": 0.02}
    if not _by_text(name):
        groups = {"attention": 0.02, "matrix products": 0.05, "allocation": 0.01}
    wall_s = 1.25 * sum(groups.values())
    outside = {"outside the model": wall_s - sum(groups.values())}
    return {
        "kind": "profile",
        "treatment": name,
        "wall_s": wall_s,
        "groups": groups | outside,
        "top": [],
    }
