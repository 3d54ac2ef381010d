"""``kvbaton bench``: ratios in one run, against honest rivals."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from kvbaton import models, settings
from kvbaton.cli.bench_ledger import bench_ledger
from kvbaton.cli.bench_policy import bench_policy
from kvbaton.cli.bench_tables import MarkdownFlag, show_tables
from kvbaton.cli.fidelity_command import bench_fidelity
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype
from kvbaton.cli.output import JsonFlag, Output
from kvbaton.errors import InputError
from kvbaton.types import JSON

SHAPES = {
    "ttft": """{"model", "rows": [{"tokens", "new_tokens", "dtype", "kv_bytes", "text_s",
 "text_loop_s", "text_generate_s", "handmade_s", "handmade_mapped_s", "prefix_cache_s", "floor_s",
 "baton_s", "handoff_s", "handoff_again_s", "handmade_handoff_s", "hash_s", "memcpy_s", "forward_s",
 "speedup", "over_floor", "peak_extra_bytes", "peak_over_kv", "phases", "sender_phases",
 "moved_over_memcpy", "computed_tokens", "same_first_token", "second_handoff_bytes",
 "grown": {"tokens", "bytes_written", "stored_bytes", "limit_bytes"}, "decode_ratio", "samples"}],
 "summary": {"targets": [{"target", "tokens", "dtype", "limit", "at_least", "value", "met"}],
 "import_s", "import_limit_s"}, "environment", "settings"}""",
    "codecs": """{"memcpy_gb_s", "rows": [{"codec", "shape", "dtype", "encode_gb_s", "decode_gb_s",
 "encode_over_memcpy", "decode_over_memcpy", "memcpy_gb_s", "bits_per_element", "max_abs_error"}],
 "skipped", "repeats", "environment"}""",
    "seals": """{"model", "sign_ms", "verify_ms", "hash_gb_s", "blake3_gb_s", "encrypt_gb_s",
 "layer0_share_of_prefill", "over_floor_with", "over_floor_without", "rows": [{"tokens",
 "new_tokens", "dtype", "kv_bytes", "with_s", "without_s", "encrypted_s", "floor_s", "prefill_s",
 "memcpy_s", "forward_s", "over_floor_with", "over_floor_without", "over_floor_encrypted",
 "with_over_without", "encrypted_over_with", "layer0_s", "layer0_share_of_prefill",
 "phases": {"with", "without", "encrypted"}, "same_first_token", "samples"}], "seals": [{"tokens",
 "dtype", "segments", "manifest_bytes", "envelope_bytes", "sign_ms", "sign_alone_ms", "verify_ms",
 "parse_envelope_ms", "verify_alone_ms", "parse_manifest_ms", "kv_bytes", "range_bytes",
 "hash_gb_s", "blake3_gb_s", "hash_over_blake3", "encrypt_gb_s", "decrypt_gb_s", "samples"}],
 "summary": {"targets": [{"target", "tokens", "dtype", "limit", "at_least", "value", "met"}]},
 "environment", "settings"}""",
    "stores": """{"size_bytes", "range_bytes", "repeats", "memcpy_gb_s", "blake3_gb_s",
 "sha256_gb_s", "stores": [{"store", "label", "put_gb_s", "get_gb_s", "ranges_gb_s",
 "put_over_memcpy", "get_over_memcpy", "ranges_over_memcpy"}], "environment"}""",
    "throughput": """{"model", "rows": [{"agents", "rounds", "text_turns_per_min",
 "kept_turns_per_min", "baton_turns_per_min", "ratio", "ratio_kept", "peak_bytes_text",
 "peak_bytes_kept", "peak_bytes_baton", "context_tokens", "turns", "samples"}],
 "waiting": {"agents", "tokens", "kept_bytes", "baton_bytes", "shared_bytes", "memory_bytes",
 "kept_agents", "baton_agents"}, "environment", "settings"}""",
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Benchmarks: ratios within one run, against honest rivals.", no_args_is_help=True
    )
    group.command("ttft")(bench_ttft)
    group.command("seals")(bench_seals)
    group.command("throughput")(bench_throughput)
    group.command("policy")(bench_policy)
    group.command("ledger")(bench_ledger)
    group.command("stores")(bench_stores)
    group.command("codecs")(bench_codecs)
    group.command("fidelity")(bench_fidelity)
    app.add_typer(group, name="bench")


def bench_ttft(
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Built-in name, folder, or hub id.")
    ] = "smollm2-135m",
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,...", help="Tokens of context.")
    ] = "512,1024,2048,4096,7000",
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", help="Tokens that the receiver computes.")
    ] = 24,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="D,...", help="dtypes of weights and cache.")
    ] = "bfloat16,float32",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timed runs; medians are reported.")
    ] = 5,
    decode_tokens: Annotated[
        int, typer.Option("--decode-tokens", metavar="N", help="0 leaves the decoding out.")
    ] = 256,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="Threads of all rivals; 0: torch's own.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", metavar="D", help="A torch device.")] = "auto",
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a picture (matplotlib).")
    ] = None,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Time to the first token by baton, between two processes.

    Measured against text, torch.save and torch.load, a prefix cache, and one memcpy plus the
    forward pass.  Takes minutes; close other programs.
    """
    from kvbaton.bench.report import environment_line, ttft_tables
    from kvbaton.bench.ttft import Plan, measure

    output, chosen = Output(as_json), settings.from_environment()
    source = models.resolve(model, data_dir=chosen.data_dir)
    if plot is not None:
        from kvbaton.bench.plot import require_matplotlib

        require_matplotlib()
    plan = Plan(
        model=source.name,
        source=source.path_or_id,
        digests=chosen.cache_dir / "digests",
        tokens=tuple(_number(part, "--tokens") for part in _parts(tokens)),
        new_tokens=new_tokens,
        dtypes=_parts(dtype),
        repeats=repeats,
        decode_tokens=decode_tokens,
        device=device,
        threads=threads,
        offline=chosen.offline,
    )
    with output.progress("bench ttft") as step:
        result = measure(plan, step.say)
    if plot is not None:
        from kvbaton.bench.plot import plot_ttft

        plot_ttft(result, plot)
    _warn(output, result)
    line = f"{result['model']}: {environment_line(result)}"
    output.result(result, lambda console: show_tables(console, line, ttft_tables(result), markdown))


def bench_seals(
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Built-in name, folder, or hub id.")
    ] = "smollm2-135m",
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,...", help="Tokens of context.")
    ] = "2048,4096",
    sealed_tokens: Annotated[
        int, typer.Option("--sealed-tokens", metavar="N", help="Of the baton that is signed.")
    ] = 8000,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="D,...", help="dtypes of weights and cache.")
    ] = "bfloat16",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timed runs; medians are reported.")
    ] = 15,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="Threads of all rivals; 0: torch's own.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", metavar="D", help="A torch device.")] = "auto",
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """What it costs that a baton can be trusted.

    Signing, verifying, hashing, encrypting, the check of layer 0, and takes with and without
    them.  Takes minutes; close other programs.
    """
    from kvbaton.bench.report import environment_line
    from kvbaton.bench.seals import measure_seals
    from kvbaton.bench.seals_report import seal_tables
    from kvbaton.bench.ttft import Plan

    output, chosen = Output(as_json), settings.from_environment()
    source = models.resolve(model, data_dir=chosen.data_dir)
    plan = Plan(
        model=source.name,
        source=source.path_or_id,
        digests=chosen.cache_dir / "digests",
        tokens=tuple(_number(part, "--tokens") for part in _parts(tokens)),
        dtypes=_parts(dtype),
        repeats=repeats,
        decode_tokens=0,
        device=device,
        threads=threads,
        offline=chosen.offline,
    )
    with output.progress("bench seals") as step:
        result = measure_seals(plan, step.say, sealed_tokens=sealed_tokens)
    _warn(output, result)
    line = f"{result['model']}: {environment_line(result)}"
    output.result(result, lambda console: show_tables(console, line, seal_tables(result), markdown))


def bench_throughput(
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Built-in name, folder, or hub id.")
    ] = "smollm2-135m",
    agents: Annotated[
        str, typer.Option("--agents", metavar="N,...", help="Agents in the ring, a row each.")
    ] = "2,5",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="How often each agent has its turn.")
    ] = 3,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", help="Tokens of the document.")
    ] = 2048,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", help="Tokens of each answer.")
    ] = 32,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", metavar="D", help="dtype of weights and cache.")
    ] = Dtype.BFLOAT16,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timed runs; medians are reported.")
    ] = 3,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Turns per minute of several agents on one context, and what they hold in memory.

    By baton, by text that is prefilled from nothing each time, and by text where every agent keeps
    its own cache.  Takes minutes; close other programs.
    """
    from kvbaton.bench.report import environment_line
    from kvbaton.bench.throughput import ThroughputPlan, measure_throughput
    from kvbaton.bench.throughput_report import throughput_tables

    output = Output(as_json)
    plan = ThroughputPlan(
        agents=tuple(_number(part, "--agents") for part in _parts(agents)),
        rounds=rounds,
        tokens=tokens,
        new_tokens=new_tokens,
        repeats=repeats,
    )
    engine = load_engine(output, model, dtype=dtype.value)
    with output.progress("bench throughput") as step:
        result = measure_throughput(engine, plan, step.say)
    line = f"{result['model']}: {environment_line(result)}"
    tables = throughput_tables(result)
    output.result(result, lambda console: show_tables(console, line, tables, markdown))


def bench_stores(
    stores: Annotated[
        str, typer.Option("--stores", metavar="URL,...", help="By default one of every kind.")
    ] = "",
    size_mb: Annotated[
        float, typer.Option("--size-mb", metavar="MB", help="Size of the object, 10^6 bytes.")
    ] = 48.0,
    range_kb: Annotated[
        float, typer.Option("--range-kb", metavar="KB", help="Size of the pieces, 2^10 bytes.")
    ] = 192.0,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timed runs; medians are reported.")
    ] = 7,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Speed of stores, whole objects and pieces, against memcpy and hashing in the same run."""
    from kvbaton.bench.report import environment_line, store_table
    from kvbaton.bench.stores import StorePlan, default_stores, measure_stores

    output, size_bytes = Output(as_json), int(1e6 * size_mb)
    with ExitStack() as stack:
        urls = _parts(stores) or stack.enter_context(default_stores(size_bytes))
        plan = StorePlan(urls, size_bytes, int(1024 * range_kb), repeats)
        step = stack.enter_context(output.progress("bench stores"))
        result = measure_stores(plan, step.say)
    line = environment_line(result)
    output.result(
        result, lambda console: show_tables(console, line, [store_table(result)], markdown)
    )


def bench_codecs(
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="MODEL,...", help="Whose layers: see the guide.")
    ] = "smollm2-135m,8b",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="D,...", help="dtypes of the cache.")
    ] = "float32,bfloat16",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timed runs; the shortest count.")
    ] = 15,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Speed of codecs and profiles on one thread, against memcpy in the same run.

    Beside them torch.save, and transformers' QuantizedCache where its back ends are installed.
    """
    from kvbaton.bench.codecs import CodecBench, measure_codecs
    from kvbaton.bench.codecs_report import codec_tables
    from kvbaton.bench.report import environment_line

    output = Output(as_json)
    plan = CodecBench(_parts(dtype), _parts(shapes), repeats)
    with output.progress("bench codecs") as step:
        result = measure_codecs(plan, step.say)
    for name, reason in result["skipped"].items():
        output.warn(f"{name} was left out: {reason}")
    line = environment_line(result)
    output.result(
        result, lambda console: show_tables(console, line, codec_tables(result), markdown)
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} takes whole numbers, not {text[:40]!r}") from None


def _warn(output: Output, result: JSON) -> None:
    if result["settings"]["repeats"] < 5:
        output.warn("medians of fewer than 5 runs: the figures are rough")
    if not result["settings"]["shared_memory"]:
        output.warn("there is no shared memory with enough room: the store was on a disk")
    machine = result["environment"]
    if machine["load"] > 0.5 * machine["cores"]:
        output.warn(f"the machine was busy before (load {machine['load']}): trust ratios only")
