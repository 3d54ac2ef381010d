"""``kvbaton tune-codec``: what lossy profiles cost on a model, and smaller plans for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption
from kvbaton.cli.output import JsonFlag, Output, print_table
from kvbaton.codecs.calibration import store_calibration
from kvbaton.codecs.profiles import RECOMMENDED, profile
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.codecs.calibration import CalibrationRecord
    from kvbaton.codecs.plan import CodecPlan
    from kvbaton.tuning import Corpus, Floors, Search, Tuning
    from kvbaton.tuning.tune import Wanted

SHAPES = {
    "tune-codec": """{"model", "dtype", "function", "tokens", "positions", "corpus",
 "noise_floor_kl", "bf16_floor_kl", "records": [{"profile", "digest", "file", "searched",
 "bits_per_element", "kl", "kl_worst", "flips", "ppl_ratio", "noise_multiple", "bf16_multiple",
 "first_layer_error", "texts": [{"text", "kl", "flips", "ppl_ratio"}]}],
 "windows": {"file", "takes", "codecs"} or null where caches cannot be computed again,
 "watch": {"file", "limit", "false_alarms": [{"caches", "alarms", "runs"}]}}"""
}
"""What ``--json`` prints, for the reference."""

_NAMES = {
    Dtype.BFLOAT16: "BF16",
    Dtype.FLOAT16: "F16",
    Dtype.FLOAT32: "F32",
    Dtype.FLOAT64: "F64",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune-codec")(tune_codec)


def tune_codec(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name, folder or hub id.")],
    target_kl: Annotated[
        float | None,
        typer.Option(
            "--target-kl", metavar="X", help="Search the smallest plan with a KL of at most X nats."
        ),
    ] = None,
    max_bits: Annotated[
        float | None,
        typer.Option("--max-bits", metavar="B", help="Bits per element that a plan may take."),
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Profile to measure; may be repeated."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text to measure with; may be repeated."),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=16, help="Tokens of each text's context.")
    ] = 1024,
    positions: Annotated[
        int, typer.Option("--positions", metavar="N", min=1, help="Positions that are compared.")
    ] = 128,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Also measure where the first tokens of honest answers lie, so that receivers "
            "can watch theirs; some hundred short answers.",
        ),
    ] = False,
    takes: Annotated[
        int,
        typer.Option(
            "--takes",
            metavar="N",
            min=0,
            help="Honest takes that set the limits of windows, by which critical takes are "
            "examined; 0 for none.",
        ),
    ] = 60,
    dtype: DtypeOption = Dtype.BFLOAT16,
    as_json: JsonFlag = False,
) -> None:
    """Measure lossy profiles on a model, search smaller plans, and keep what was found.

    A lossy profile is refused until it was measured on the very model and dtype.  Searches run in
    float32, where the model's own noise hides nothing; figures are measured in the dtype asked
    for, on texts that the search has not seen.  With a bound of your own, the plan found is kept as
    profile "tuned", or as the one profile that is named.
    """
    from kvbaton.tuning import Tuning, with_bounds

    output, named = Output(as_json), tuple(profiles or RECOMMENDED)
    for name in named:
        profile(name)
    tuning = Tuning(profiles=named, tokens=tokens, positions=positions)
    tuning = with_bounds(tuning, kl=target_kl, bits=max_bits)
    session = _Session(output, model, tuple(text or ()))
    records = session.run(with_search_positions(tuning), dtype)
    kept = [store_calibration(record, session.data_dir) for record in records]
    windows = session.window_limits(records, dtype, takes) if takes else None
    limits = session.watch_range(records, dtype) if watch else None
    result = _said(records, kept) | {"windows": windows, "watch": limits}
    output.result(result, lambda console: _show(console, records))


def with_search_positions(tuning: Tuning) -> Tuning:
    """A search never compares more positions than the measurement does."""
    return replace(tuning, search_positions=min(tuning.search_positions, tuning.positions))


class _Session:
    """One run of the command: the texts, and the engines that it needs one after the other."""

    def __init__(self, output: Output, model: str, paths: tuple[Path, ...]) -> None:
        from kvbaton.tuning import read_texts

        self._output, self._model = output, model
        chosen = settings.from_environment()
        self.data_dir, self._cache_dir = chosen.data_dir, chosen.cache_dir
        self._texts = read_texts(paths)

    def run(self, tuning: Tuning, dtype: Dtype) -> tuple[CalibrationRecord, ...]:
        """Search in float32, measure in ``dtype``."""
        from kvbaton.tuning import measured_records, needs_search

        engine = self._load(Dtype.FLOAT32 if needs_search(tuning) else dtype)
        wanted = self._wanted(engine, tuning)
        if engine.layout.dtype != _NAMES[dtype]:
            del engine
            engine = self._load(dtype)
        tuning = replace(tuning, floors=self._floors(engine))
        with self._output.progress("measuring") as step:
            corpus = self._corpus(engine, tuning)
            return measured_records(engine, wanted, corpus, tuning, progress=step.say)

    def window_limits(
        self, records: Sequence[CalibrationRecord], dtype: Dtype, takes: int
    ) -> JSON | None:
        """Measure and keep how far honest caches of these codecs lie from their tokens."""
        from kvbaton.bench.texts import text_kinds
        from kvbaton.tuning.probe_limits import measured_probe_limits, store_probe_limits

        engine = self._load(dtype)
        texts = [one.text for one in self._texts or text_kinds()]
        with self._output.progress("windows") as step:
            limits = measured_probe_limits(engine, records, texts, takes=takes, progress=step.say)
        if limits is None:
            return None
        path = store_probe_limits(limits, self.data_dir)
        names = [one.codec for one in limits.codecs]
        return {"file": str(path), "takes": limits.takes, "codecs": names}

    def watch_range(self, records: Sequence[CalibrationRecord], dtype: Dtype) -> JSON:
        """Measure and keep the range of first tokens, with false alarms by codec."""
        from kvbaton.bench.kl import coded_cache
        from kvbaton.bench.texts import text_kinds
        from kvbaton.probes.measuring import measure_range
        from kvbaton.tuning.watch import store_watch_range

        engine = self._load(dtype)

        def coded(plan: CodecPlan) -> Callable[[Any, Sequence[int]], Any]:
            return lambda cache, ids: coded_cache(engine, cache, plan, tokens=cache.length).cache

        caches = {record.profile: coded(record.plan) for record in records}
        texts = [one.text for one in self._texts or text_kinds()]
        with self._output.progress("watching first tokens") as step:
            limits = measure_range(engine, texts, caches=caches, progress=step.say)
        path = store_watch_range(limits, engine.function.digest, self.data_dir)
        counted = [asdict(count) for count in limits.false_alarms]
        return {"file": str(path), "limit": limits.limit, "false_alarms": counted}

    def _load(self, dtype: Dtype) -> Any:
        return load_engine(self._output, self._model, dtype=dtype.value)

    def _corpus(self, engine: Any, tuning: Tuning) -> Corpus:
        from kvbaton.tuning import built_in_corpus, own_corpus

        wanted = tuning.tokens + tuning.positions
        if self._texts:
            return own_corpus(engine, self._texts, wanted)
        return built_in_corpus(engine, wanted)

    def _wanted(self, engine: Any, tuning: Tuning) -> tuple[Wanted, ...]:
        from kvbaton.tuning import make_search, wanted_plans

        with self._output.progress("searching") as step:

            @cache
            def search() -> Search:
                corpus = self._corpus(engine, tuning)
                folder = self._cache_dir / "tuning"
                return make_search(engine, corpus, tuning, folder=folder, progress=step.say)

            return wanted_plans(engine.layout, tuning, search)

    def _floors(self, engine: Any) -> Floors:
        """The noise floor of this very function, and the model's in bfloat16, where known."""
        from kvbaton.doctor import stored_noise_floor
        from kvbaton.doctor.noise import model_noise_floor
        from kvbaton.tuning import Floors

        own = stored_noise_floor(engine, self.data_dir)
        other = model_noise_floor(engine.name, "BF16", self.data_dir)
        return Floors(own.kl if own else None, other.kl if other else None)


def _said(records: Sequence[CalibrationRecord], kept: Sequence[Path]) -> JSON:
    first = records[0]
    return {
        "model": first.model,
        "dtype": first.dtype,
        "function": first.function,
        "tokens": first.tokens,
        "positions": first.positions,
        "corpus": first.corpus,
        "noise_floor_kl": first.noise_floor_kl,
        "bf16_floor_kl": first.bf16_floor_kl,
        "records": [
            {
                "profile": one.profile,
                "digest": one.digest,
                "file": str(path),
                "searched": one.searched,
                "bits_per_element": one.bits_per_element,
                "kl": one.kl,
                "kl_worst": one.kl_worst,
                "flips": one.flips,
                "ppl_ratio": one.ppl_ratio,
                "noise_multiple": one.noise_multiple,
                "bf16_multiple": one.bf16_multiple,
                "first_layer_error": one.first_layer_error,
                "texts": [asdict(text) for text in one.texts],
            }
            for one, path in zip(records, kept, strict=True)
        ],
    }


_HEADINGS = ["profile", "plan", "bits", "KL", "worst text", "flips", "perplexity", "x noise"]


def _show(console: Console, records: Sequence[CalibrationRecord]) -> None:
    first = records[0]
    console.print(
        f"{first.model} in {first.dtype}: {first.tokens} tokens, {first.positions} positions, "
        f"{len(first.texts)} texts ({', '.join(text.text for text in first.texts)})",
        markup=False,
    )
    rows = [
        [
            one.profile,
            "searched" if one.searched else "the profile's",
            f"{one.bits_per_element:.2f}",
            f"{one.kl:.1e}",
            f"{one.kl_worst:.1e}",
            f"{100 * one.flips:.1f}%",
            f"{one.ppl_ratio:.4f}",
            _multiple(one),
        ]
        for one in records
    ]
    print_table(console, _HEADINGS, rows, right="  rrrrrr")


def _multiple(record: CalibrationRecord) -> str:
    """In multiples of the noise in bfloat16: in float32 there is next to none."""
    found = record.bf16_multiple or record.noise_multiple
    return "unknown" if found is None else f"{found:.2f}"
