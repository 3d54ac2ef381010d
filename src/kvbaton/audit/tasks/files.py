"""Task sets as files: JSON lines, a header and then a unit a line.

::

    {
        "format": "kvbaton audit tasks 1",
        "name": "orders",
        "version": 1,
        "seed": 0,
        "about": "What our support desk is asked.",
        "made_for": "",
    }
    {
        "id": "u001",
        "kind": "facts",
        "language": "en",
        "relevance": "high",
        "messages": [{"role": "user", "content": "Read this order. ... Sum it up."}],
        "message": "",
        "message_tokens": 48,
        "questions": [
            {
                "id": "q1",
                "text": "What is the order number?",
                "answers": ["4821"],
                "scorer": "contains",
                "opening": "",
                "max_new_tokens": 16,
                "tests": "",
            }
        ],
    }

Every field of the header but ``format`` and ``name`` may be left out, and of a unit and a question
those that have a default (:mod:`kvbaton.audit.tasks.schema`).

A file of one's own needs no header (its name is then that of the file), and a unit may be as short
as this::

    {
        "context": "The order number is 4821. ...",
        "questions": [{"question": "What is the order number?", "answer": "4821"}],
    }

Such a context becomes a user message that ends with a request to confirm it; ids that are missing
are ``u001``, ``u002`` ... and ``q1``, ``q2`` ...; the other fields of a unit and of a question may
be given as well.  Both forms may stand in one file.

What is written is canonical (:mod:`kvbaton.wire.canonical`), so equal sets are equal files.  The
digest is that of the file's bytes as they are.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from kvbaton.audit.scoring import is_scorer, known_scorers
from kvbaton.audit.tasks.schema import Question, Relevance, TaskSet, Unit
from kvbaton.errors import InputError, PipelineError
from kvbaton.pipelines.tables import Table, as_text
from kvbaton.types import JSON
from kvbaton.wire import canonical

FORMAT = "kvbaton audit tasks 1"
MAX_FILE_BYTES = 64 << 20
MAX_LINE_BYTES = 4 << 20
MAX_NEW_TOKENS = 4096
CONFIRM = "Confirm in one short sentence that you have read this."
"""What the sender of a unit that is no more than a context is asked."""

_HEADER = ("format", "name", "version", "seed", "about", "made_for")
_UNIT = (
    "id", "kind", "language", "relevance", "messages", "message", "message_tokens", "questions",
    "context",
)  # fmt: skip
_QUESTION = (
    "id", "text", "question", "answers", "answer", "scorer", "opening", "max_new_tokens", "tests",
)  # fmt: skip
_MESSAGE = ("role", "content")
_ROLES = ("system", "user", "assistant")
_OWN_KIND = "own"


# --- writing ------------------------------------------------------------------------------------


def task_set_bytes(tasks: TaskSet) -> bytes:
    """The canonical bytes of a set's file.

    Raises
    ------
    InputError
        Something in it cannot be written, such as half of a surrogate pair.
    """
    header = {"format": FORMAT, **{key: getattr(tasks, key) for key in _HEADER[1:]}}
    lines = [canonical.dumps(header, what="header")]
    for unit in tasks.units:
        value = asdict(unit)
        value["messages"] = list(unit.messages)
        value["questions"] = [
            {**asdict(question), "answers": list(question.answers)} for question in unit.questions
        ]
        value["relevance"] = unit.relevance.value
        lines.append(canonical.dumps(value, what="unit"))
    return b"".join(line + b"\n" for line in lines)


def digest_of(tasks: TaskSet) -> str:
    """BLAKE3 (hex) of the file that the set would be."""
    return blake3(task_set_bytes(tasks)).hexdigest()


def write_task_set(tasks: TaskSet, path: Path | str) -> TaskSet:
    """Write a set, readable by its owner only, and return it with its digest.

    The file is there whole, or as it was before.

    Raises
    ------
    InputError
        The file cannot be written, or something in the set cannot.
    """
    written, path = task_set_bytes(tasks), Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(written)
            file.flush()
            os.fsync(descriptor)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        reason = error.strerror or error
        raise InputError(f"the task set cannot be written: {reason}", at=str(path)) from error
    return replace(tasks, digest=blake3(written).hexdigest())


# --- reading ------------------------------------------------------------------------------------


def read_task_set(path: Path | str) -> TaskSet:
    """Read a set, strictly.

    Raises
    ------
    InputError
        The file cannot be read, or a line of it is wrong; ``at`` is ``FILE:LINE $.field``.
    """
    path = Path(path)
    raw = _bytes_of(path)
    header: JSON | None = None
    units: dict[str, Unit] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            value = _json(line)
            if isinstance(value, dict) and "format" in value:
                if header is not None or units:
                    raise InputError("a header is the first line and there is one", at="$.format")
                header = _header(value)
            else:
                unit = _unit(value, len(units) + 1)
                if unit.id in units:
                    raise _twice("unit", unit.id, "$.id")
                units[unit.id] = unit
        except InputError as error:
            _refuse(error, place)
    if not units:
        raise InputError("there is no unit in the task set", at=str(path))
    named = header or {"name": path.stem, "version": 1}
    return TaskSet(**named, units=tuple(units.values()), digest=blake3(raw).hexdigest())


def _refuse(error: InputError, place: str) -> NoReturn:
    raise InputError(error.sentence, at=f"{place} {error.at or '$'}", hint=error.hint) from error


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"the task set cannot be read: {reason}", at=str(path)) from error
    except ValueError as error:  # a name with a NUL in it
        raise InputError(f"the task set cannot be read: {error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"the task set is larger than {MAX_FILE_BYTES} bytes", at=str(path))
    return raw


def _json(line: bytes) -> Any:
    """The value of a line, of which every part can be written again."""
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_no_twins)
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise InputError(f"the line is not JSON: {error.msg} (column {error.colno})") from error
    except (RecursionError, ValueError) as error:
        raise InputError("the line is nested too deeply, or a number in it is too long") from error
    canonical.dumps(value, what="line")
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> JSON:
    _refuse_twice([key for key, _ in pairs], "key", "$")
    return dict(pairs)


def _refuse_twice(names: list[str], what: str, at: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _twice(what, name, at)
        seen.add(name)


def _twice(what: str, name: str, at: str) -> InputError:
    return InputError(f"the {what} {name[:80]!r} is there twice", at=at)


def _header(value: Any) -> JSON:
    table = Table(value, "$", _HEADER)
    if table.text("format") != FORMAT:
        raise InputError(
            f"the format {table.text('format')[:80]!r} is not known", at="$.format", hint=FORMAT
        )
    return {
        "name": table.text("name", filled=True),
        "version": table.integer("version", 1, at_least=0),
        "seed": table.integer("seed", 0, at_least=0),
        "about": table.text("about", ""),
        "made_for": table.text("made_for", ""),
    }


def _unit(value: Any, number: int) -> Unit:
    table = Table(value, "$", _UNIT)
    own = "context" in table
    messages = _from_context(table) if own else _messages(table)
    questions = tuple(
        _question(item, at, place) for place, (item, at) in enumerate(table.items("questions"), 1)
    )
    if not questions:
        raise InputError("there is no question", at="$.questions")
    _refuse_twice([question.id for question in questions], "question", "$.questions")
    return Unit(
        id=table.text("id", f"u{number:03d}" if own else None, filled=True),
        kind=table.text("kind", _OWN_KIND if own else None, filled=True),
        messages=messages,
        questions=questions,
        language=table.text("language", "en", filled=True),
        relevance=Relevance(table.choice("relevance", list(Relevance), Relevance.HIGH)),
        message=table.text("message", ""),
        message_tokens=table.integer("message_tokens", 48, at_least=1, at_most=MAX_NEW_TOKENS),
    )


def _from_context(table: Table) -> tuple[JSON, ...]:
    if "messages" in table:
        raise InputError("a unit has a context or messages, not both", at="$.context")
    context = table.text("context", filled=True)
    return ({"role": "user", "content": f"{context}\n\n{CONFIRM}"},)


def _messages(table: Table) -> tuple[JSON, ...]:
    messages = []
    for item, at in table.items("messages"):
        said = Table(item, at, _MESSAGE)
        if said.text("role") not in _ROLES:
            raise PipelineError(
                f"the role {said.text('role')[:80]!r} is not known",
                at=said.path("role"),
                hint=f"known: {', '.join(_ROLES)}",
            )
        messages.append({"role": said.text("role"), "content": said.text("content", filled=True)})
    if not messages or messages[-1]["role"] != "user":
        raise InputError("the last message must be the user's", at="$.messages")
    return tuple(messages)


def _question(item: Any, at: str, place: int) -> Question:
    table = Table(item, at, _QUESTION)
    scorer = table.text("scorer", "contains", filled=True)
    if not is_scorer(scorer):
        raise InputError(
            f"the scorer {scorer[:80]!r} is not known",
            at=table.path("scorer"),
            hint=f"known: {', '.join(known_scorers())}, or module:function",
        )
    question = Question(
        id=table.text("id", f"q{place}", filled=True),
        text=_one_of(table, "text", "question"),
        answers=_answers(table),
        scorer=scorer,
        opening=table.text("opening", ""),
        max_new_tokens=table.integer("max_new_tokens", 16, at_least=1, at_most=MAX_NEW_TOKENS),
        tests=table.text("tests", ""),
    )
    if scorer == "code" and not question.tests.strip():
        raise InputError("a question for code needs tests", at=table.path("tests"))
    if scorer in known_scorers() and scorer != "code" and not question.answers:
        raise InputError("there is no right answer", at=table.path("answers"))
    return question


def _one_of(table: Table, key: str, short: str) -> str:
    if key in table and short in table:
        raise InputError(f"there are both {key!r} and {short!r}", at=table.path(short))
    return table.text(short if short in table else key, filled=True)


def _answers(table: Table) -> tuple[str, ...]:
    if "answer" not in table:
        return table.texts("answers")
    if "answers" in table:
        raise InputError("there are both 'answers' and 'answer'", at=table.path("answer"))
    return (as_text(table.raw("answer"), table.path("answer"), filled=True),)
