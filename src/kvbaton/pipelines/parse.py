"""Pipeline files: read strictly, every complaint with its path (``docs/guides/pipelines.md``)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from kvbaton.context import Context
from kvbaton.errors import EmptyInput, InputError, PipelineError
from kvbaton.pipelines.graph import in_running_order
from kvbaton.pipelines.schema import (
    ANSWERS,
    DTYPES,
    INPUT,
    AgentSpec,
    ContextSpec,
    Edge,
    HandOffWhen,
    Pipeline,
    SamplingSpec,
)
from kvbaton.pipelines.tables import Table, as_text, wrong_type
from kvbaton.types import Mode

MAX_FILE_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 64 << 20

_TOP = ("name", "description", "model", "dtype", "profile", "input", "context", "agents", "edges")
_AGENT = ("name", "system", "task", "max_new_tokens", "stop", "sampling")
_SAMPLING = ("temperature", "top_p", "top_k", "seed")
_EDGE = ("from", "to", "mode", "spans", "instruction", "join", "hand_off_when")
_CONTEXT = ("title", "notes", "facts")
_MODES = tuple(mode.value for mode in Mode)
_SPANS = ("generated", "prompt", "turn", "all")
_MOMENTS = ("end", "tool-call")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PLACEHOLDER = re.compile(r"\{([a-z_]{3,20})\}")


# --- files --------------------------------------------------------------------------------------


def default_pipeline(*, document: str | None = None) -> Pipeline:
    """The pipeline that comes with kvbaton, with its own document or another."""
    with as_file(files("kvbaton") / "data") as folder:
        return load_pipeline(folder / "default.toml", document=document)


def load_pipeline(path: Path | str, *, document: str | None = None) -> Pipeline:
    """Read a pipeline file and the input document that it names.

    Parameters
    ----------
    path
        A TOML file.
    document
        Use this text instead of the document that the file names.

    Raises
    ------
    PipelineError
        The file is not TOML or not a pipeline; ``at`` is the path into it.
    InputError
        A file cannot be read.
    EmptyInput
        The document is blank.
    """
    path = Path(path)
    try:
        parsed = tomllib.loads(_read(path, "the pipeline", MAX_FILE_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PipelineError(f"{path.name} is not TOML: {error}") from error
    try:
        pipeline = parse_pipeline(parsed, folder=path.parent)
        return with_document(pipeline, document)
    except PipelineError as error:
        raise PipelineError(
            f"{path.name}: {error.sentence}", at=error.at, hint=error.hint
        ) from error


def with_document(pipeline: Pipeline, document: str | None = None) -> Pipeline:
    """The pipeline with its document: the text that is given, or else the file that it names.

    Raises
    ------
    PipelineError
        A document is needed and there is none, or there is one that nothing reads.
    InputError, EmptyInput
        The document cannot be read, or is blank.
    """
    if document is None and pipeline.input is None:
        if pipeline.reads_input:
            raise PipelineError("'input' is missing, and a task reads it", at="$")
        return pipeline
    if not pipeline.reads_input:
        raise PipelineError(
            f"nothing reads the input: write {INPUT} where the document goes", at="$.input"
        )
    if document is None and pipeline.input is not None:
        document = _read(pipeline.input, "the input document", MAX_DOCUMENT_BYTES)
    text = (document or "").strip()
    if not text:
        raise EmptyInput("there is nothing to read: the input document is blank", at="$.input")
    return replace(pipeline, document=text)


def _read(path: Path, what: str, limit_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
        if len(raw) > limit_bytes:
            raise InputError(f"{what} is larger than {limit_bytes} bytes: {path}")
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{what} cannot be read: {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8: {path}: {error.reason}") from error
    except ValueError as error:  # a name with a NUL in it
        raise InputError(f"{what} cannot be read: {error}") from error


# --- tables -------------------------------------------------------------------------------------


def parse_pipeline(value: Any, *, folder: Path = Path()) -> Pipeline:
    """A pipeline from the tables of a file; reads no other file.

    Parameters
    ----------
    value
        What ``tomllib`` gave.
    folder
        What a relative ``input`` is relative to.

    Raises
    ------
    PipelineError
        It is not a pipeline; ``at`` is the path into it.
    """
    top = Table(value, "$", _TOP)
    agents = [_agent(item, at) for item, at in top.items("agents")]
    edges = _edges(top)
    context = _context(top.raw("context"), "$.context") if "context" in top else None
    source = top.text("input", filled=True) if "input" in top else None
    pipeline = Pipeline(
        name=top.text("name", filled=True),
        description=top.text("description", ""),
        model=top.text("model", filled=True) if "model" in top else None,
        dtype=top.choice("dtype", list(DTYPES), "") if "dtype" in top else None,
        profile=top.text("profile", filled=True) if "profile" in top else None,
        input=folder / source if source is not None else None,
        context=context,
        agents=tuple(agents),
        edges=tuple(edge for edge, _ in edges),
    )
    return in_running_order(pipeline, [at for _, at in edges])


def _agent(value: Any, at: str) -> AgentSpec:
    table = Table(value, at, _AGENT)
    name = table.text("name")
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name[:80]!r} cannot be an agent's name",
            at=table.path("name"),
            hint="1 to 64 letters, digits, '_', '.', '-', beginning with a letter or digit",
        )
    return AgentSpec(
        name=name,
        system=table.text("system", ""),
        task=_template(table, "task"),
        max_new_tokens=table.integer("max_new_tokens", 128, at_least=1, at_most=1 << 20),
        stop=table.texts("stop"),
        sampling=_sampling(table),
    )


def _template(table: Table, key: str) -> str:
    """A text with placeholders; one that is nearly a placeholder is taken for a slip."""
    said, known = table.text(key, ""), (INPUT.strip("{}"), ANSWERS.strip("{}"))
    for word in _PLACEHOLDER.findall(said):
        close = get_close_matches(word, known, n=1, cutoff=0.75)
        if word not in known and close:
            raise PipelineError(
                f"unknown placeholder {{{word}}}",
                at=table.path(key),
                hint=f"did you mean {{{close[0]}}}?",
            )
    return said


def _sampling(agent: Table) -> SamplingSpec:
    if "sampling" not in agent:
        return SamplingSpec()
    table = Table(agent.raw("sampling"), agent.path("sampling"), _SAMPLING)
    top_p = table.number("top_p", 1.0, at_least=0, at_most=1)
    if top_p == 0:
        raise PipelineError("must be more than 0", at=table.path("top_p"))
    seed = table.integer("seed", 0, at_least=0, at_most=2**63 - 1)
    return SamplingSpec(
        temperature=table.number("temperature", 0.0, at_least=0),
        top_p=top_p,
        top_k=table.integer("top_k", 0, at_least=0, at_most=1 << 31),
        seed=seed if "seed" in table else None,
    )


def _edges(top: Table) -> list[tuple[Edge, str]]:
    """Every baton with its path: an edge to several receivers is several batons."""
    if "edges" not in top:
        return []
    return [pair for item, at in top.items("edges") for pair in _edge(item, at)]


def _edge(value: Any, at: str) -> list[tuple[Edge, str]]:
    table = Table(value, at, _EDGE)
    receivers = _receivers(table)
    mode = Mode(table.choice("mode", _MODES, Mode.CONTINUE.value))
    if "spans" in table and mode is not Mode.SLICE:
        raise PipelineError(
            f"mode {mode.value!r} hands everything off",
            at=table.path("spans"),
            hint='mode = "slice"',
        )
    shape = Edge(
        sender=table.text("from"),
        receiver="",
        mode=mode,
        spans=table.choice("spans", _SPANS, _SPANS[0]),
        instruction=_template(table, "instruction"),
        join=table.texts("join"),
        hand_off_when=_moment(table),
    )
    return [(replace(shape, receiver=receiver), at) for receiver in receivers]


def _receivers(table: Table) -> tuple[str, ...]:
    value = table.raw("to")
    if not isinstance(value, str | list):
        raise wrong_type(value, "an agent's name or a list of names", table.path("to"))
    several = table.texts("to") if isinstance(value, list) else (value,)
    if not several:
        raise PipelineError("an edge needs a receiver", at=table.path("to"))
    return several


def _moment(table: Table) -> HandOffWhen:
    at = table.path("hand_off_when")
    value = table.raw("hand_off_when") if "hand_off_when" in table else "end"
    if isinstance(value, Mapping):
        return HandOffWhen("marker", Table(value, at, ("marker",)).text("marker", filled=True))
    if not isinstance(value, str):
        raise wrong_type(value, "a string or a table", at)
    if value not in _MOMENTS:
        raise PipelineError(
            f"{value[:80]!r} is no moment to hand off",
            at=at,
            hint='one of "end", "tool-call", { marker = "..." }',
        )
    return HandOffWhen(value)


def _context(value: Any, at: str) -> ContextSpec:
    table = Table(value, at, _CONTEXT)
    facts: tuple[tuple[str, str], ...] = ()
    if "facts" in table:
        found, facts_at = table.raw("facts"), table.path("facts")
        if not isinstance(found, Mapping):
            raise wrong_type(found, "a table", facts_at)
        facts = tuple((k, as_text(v, f"{facts_at}.{k}", filled=True)) for k, v in found.items())
    spec = ContextSpec(table.text("title", ""), table.texts("notes"), facts)
    _check_context(spec, at)
    return spec


def _check_context(spec: ContextSpec, at: str) -> None:
    try:
        context = Context(
            documents={spec.title: "text"} if spec.title else None,
            notes=spec.notes,
            facts=dict(spec.facts),
        )
    except InputError as error:
        raise PipelineError(error.sentence, at=at + error.at.removeprefix("$")) from error
    if not context:
        raise PipelineError("the shared context is empty", at=at)
