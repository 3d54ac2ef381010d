"""Files of task sets: read back as written; what is wrong is named by line and field."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.audit.tasks import files
from kvbaton.audit.tasks.files import read_task_set, task_set_bytes, write_task_set
from kvbaton.audit.tasks.schema import Question, Relevance, TaskSet, Unit
from kvbaton.errors import InputError

QUESTION = {"id": "q1", "text": "What is the code?", "answers": ["4821"]}
UNIT = {
    "id": "u1",
    "kind": "facts",
    "messages": [{"role": "user", "content": "The code is 4821."}],
    "questions": [QUESTION],
}
HEADER = {"format": files.FORMAT, "name": "mine", "version": 3}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FILLED = TEXT.filter(lambda text: bool(text.strip()))
NUMBER = st.integers(1, files.MAX_NEW_TOKENS)


@st.composite
def questions(draw):
    """A question that can be read back."""
    scorer = draw(st.sampled_from(["exact", "contains", "f1", "rouge-l", "code", "my.scorers:one"]))
    return Question(
        id=draw(FILLED),
        text=draw(FILLED),
        answers=tuple(draw(st.lists(FILLED, min_size=1, max_size=3))),
        scorer=scorer,
        opening=draw(TEXT),
        max_new_tokens=draw(NUMBER),
        tests=draw(FILLED) if scorer == "code" else draw(TEXT),
    )


@st.composite
def units(draw):
    """A unit that can be read back."""
    roles = [*draw(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=3)), "user"]
    return Unit(
        id=draw(FILLED),
        kind=draw(FILLED),
        messages=tuple({"role": role, "content": draw(FILLED)} for role in roles),
        questions=tuple(
            draw(st.lists(questions(), min_size=1, max_size=3, unique_by=lambda one: one.id))
        ),
        language=draw(FILLED),
        relevance=draw(st.sampled_from(Relevance)),
        message=draw(TEXT),
        message_tokens=draw(NUMBER),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(units(), min_size=1, max_size=3, unique_by=lambda one: one.id),
    st.tuples(FILLED, st.integers(0, 9), st.integers(0, 9), TEXT, TEXT),
)
def test_round_trip(tmp_path_factory, made, head):
    """A set is read back as it was written, and written again as the same bytes."""
    name, version, seed, about, made_for = head
    tasks = TaskSet(name, version, tuple(made), seed=seed, about=about, made_for=made_for)
    path = tmp_path_factory.mktemp("sets") / "tasks.jsonl"
    written = write_task_set(tasks, path)
    found = read_task_set(path)
    assert found == written == replace(tasks, digest=blake3(path.read_bytes()).hexdigest())
    assert found.made_for == made_for
    assert task_set_bytes(found) == path.read_bytes()


def written(folder: Path, *lines: object) -> Path:
    """A file of lines, values or bytes."""
    path = folder / "own.jsonl"
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw))
    return path


def test_short_form(tmp_path):
    """A context with questions and answers is a unit, and its file needs no header."""
    short = {"context": "The code is 4821.", "questions": [{"question": "Code?", "answer": "4821"}]}
    found = read_task_set(written(tmp_path, short, b"", {**short, "id": "mine", "kind": "orders"}))
    content = f"The code is 4821.\n\n{files.CONFIRM}"
    first = Unit(
        id="u001",
        kind="own",
        messages=({"role": "user", "content": content},),
        questions=(Question(id="q1", text="Code?", answers=("4821",)),),
    )
    assert found.units == (first, replace(first, id="mine", kind="orders"))
    assert (found.name, found.version, found.seed) == ("own", 1, 0)


def test_defaults(tmp_path):
    """Fields that have a default may be left out."""
    found = read_task_set(written(tmp_path, HEADER, UNIT))
    assert found.units[0].questions == (
        Question(id="q1", text="What is the code?", answers=("4821",)),
    )
    assert (found.name, found.version, found.about) == ("mine", 3, "")


def unit(**changed: object) -> dict:
    """The unit with other fields; None takes one away."""
    return {key: value for key, value in {**UNIT, **changed}.items() if value is not None}


def asked(**changed: object) -> dict:
    """The unit with another question."""
    question = {key: value for key, value in {**QUESTION, **changed}.items() if value is not None}
    return unit(questions=[question])


BAD_LINES = [
    pytest.param(b"{not json", "$", "not JSON", id="not JSON"),
    pytest.param(b'{"id": "\xff"}', "$", "not UTF-8", id="not UTF-8"),
    pytest.param(b"[" * 100_000, "$", "nested", id="nested too deeply"),
    pytest.param(b'{"id": ' + b"1" * 5000 + b"}", "$", "too long", id="a long number"),
    pytest.param(b'{"id": "u1", "id": "u2"}', "$", "twice", id="a key twice"),
    pytest.param(b'{"id": NaN}', "$.id", "", id="no number"),
    pytest.param(b'{"id": "\\ud800"}', "$.id", "", id="half a surrogate pair"),
    pytest.param([1], "$", "table", id="no object"),
    pytest.param({**HEADER, "format": "else"}, "$.format", "not known", id="another format"),
    pytest.param({"format": files.FORMAT}, "$", "missing", id="a header without a name"),
    pytest.param({**HEADER, "version": "1"}, "$.version", "integer", id="a version in words"),
    pytest.param(unit(colour="red"), "$.colour", "unknown", id="unknown field"),
    pytest.param(unit(id=None), "$", "'id' is missing", id="no id"),
    pytest.param(unit(id=7), "$.id", "string", id="an id that is a number"),
    pytest.param(unit(kind=" "), "$.kind", "blank", id="a blank kind"),
    pytest.param(unit(relevance="some"), "$.relevance", "not known", id="unknown relevance"),
    pytest.param(unit(message_tokens=0), "$.message_tokens", "at least 1", id="no tokens"),
    pytest.param(unit(message_tokens=True), "$.message_tokens", "integer", id="a boolean"),
    pytest.param(unit(messages=None), "$", "'messages' is missing", id="no messages"),
    pytest.param(unit(messages=[]), "$.messages", "user's", id="empty messages"),
    pytest.param(unit(messages="Hi"), "$.messages", "list", id="messages that are no list"),
    pytest.param(
        unit(messages=[{"role": "assistant", "content": "Hi"}]),
        "$.messages",
        "user's",
        id="no user at the end",
    ),
    pytest.param(
        unit(messages=[{"role": "boss", "content": "Hi"}]),
        "$.messages[0].role",
        "not known",
        id="unknown role",
    ),
    pytest.param(
        unit(messages=[{"role": "user", "content": "Hi", "name": "x"}]),
        "$.messages[0].name",
        "unknown",
        id="unknown field of a message",
    ),
    pytest.param(unit(context="x"), "$.context", "not both", id="context and messages"),
    pytest.param(unit(questions=[]), "$.questions", "no question", id="no questions"),
    pytest.param(unit(questions=None), "$", "'questions' is missing", id="questions missing"),
    pytest.param(
        unit(questions=[QUESTION, QUESTION]), "$.questions", "twice", id="a question twice"
    ),
    pytest.param(asked(text=None), "$.questions[0]", "'text' is missing", id="no text"),
    pytest.param(asked(answers=None), "$.questions[0].answers", "no right", id="no answers"),
    pytest.param(asked(answers=[4821]), "$.questions[0].answers[0]", "string", id="a number"),
    pytest.param(asked(answer="1"), "$.questions[0].answer", "both", id="answer and answers"),
    pytest.param(asked(question="x"), "$.questions[0].question", "both", id="text and question"),
    pytest.param(asked(scorer="best"), "$.questions[0].scorer", "not known", id="unknown scorer"),
    pytest.param(asked(scorer="code"), "$.questions[0].tests", "tests", id="code without tests"),
    pytest.param(asked(max_new_tokens=5000), "$.questions[0].max_new_tokens", "", id="too many"),
]


@pytest.mark.parametrize(("line", "field", "words"), BAD_LINES)
def test_bad_line(tmp_path, line, field, words):
    """A bad line is refused with its file, its number and the field."""
    path = written(tmp_path, b"", line)
    with pytest.raises(InputError) as caught:
        read_task_set(path)
    assert type(caught.value) is InputError
    assert words in caught.value.sentence
    assert caught.value.at == f"{path}:2 {field}"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(files._UNIT + files._QUESTION), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(["", *files._UNIT, *files._QUESTION]), value=JSON_VALUES)
def test_any_value(tmp_path_factory, key, value):
    """Whatever value a field or a line has, the file is read or refused with the line."""
    if key in files._QUESTION and key not in files._UNIT:
        line = asked(**{key: value})
    else:
        line = {**UNIT, key: value} if key else value
    path = written(tmp_path_factory.mktemp("any"), line)
    try:
        found = read_task_set(path)
    except InputError as error:
        assert error.at.startswith(f"{path}:1 $")
    else:
        assert found.digest == blake3(path.read_bytes()).hexdigest()
        assert task_set_bytes(found)


def test_unit_twice(tmp_path):
    """Two units of one name are refused at the second."""
    path = written(tmp_path, HEADER, UNIT, UNIT)
    with pytest.raises(InputError, match="'u1' is there twice") as caught:
        read_task_set(path)
    assert caught.value.at == f"{path}:3 $.id"


def test_header_late(tmp_path):
    """A header behind a unit is refused."""
    with pytest.raises(InputError, match="first line"):
        read_task_set(written(tmp_path, UNIT, HEADER))


@pytest.mark.parametrize("lines", [(), (HEADER,), (b"", b" ")])
def test_empty(tmp_path, lines):
    """A file without a unit is refused."""
    with pytest.raises(InputError, match="no unit"):
        read_task_set(written(tmp_path, *lines))


def test_too_large(tmp_path, monkeypatch):
    """Files and lines beyond their limits are refused."""
    path = written(tmp_path, HEADER, UNIT)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100)
    with pytest.raises(InputError, match="longer than 100 bytes") as caught:
        read_task_set(path)
    assert caught.value.at == f"{path}:2 $"
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 150)
    with pytest.raises(InputError, match="larger than 150 bytes"):
        read_task_set(path)


@pytest.mark.parametrize("place", ["absent.jsonl", ".", "a\0b"])
def test_unreadable(tmp_path, place):
    """What is no file is refused."""
    with pytest.raises(InputError, match="cannot be read"):
        read_task_set(tmp_path / place)


def test_written_whole(tmp_path, monkeypatch):
    """A set that cannot be written to its end leaves the old file, and nothing beside it."""
    good = read_task_set(written(tmp_path, UNIT))
    place = tmp_path / "sets" / "tasks.jsonl"
    place.parent.mkdir()
    first = write_task_set(good, place)
    before = place.read_bytes()

    def full(_: int) -> None:
        assert [one.stat().st_mode & 0o777 for one in place.parent.iterdir()] == [0o600, 0o600]
        assert place.read_bytes() == before
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(InputError, match="cannot be written: no space left"):
            write_task_set(replace(good, name="other"), place)
    assert place.read_bytes() == before
    assert list(place.parent.iterdir()) == [place]
    assert read_task_set(place) == first
    assert write_task_set(replace(good, name="other"), place).digest != first.digest
    assert place.stat().st_mode & 0o777 == 0o600
    assert list(place.parent.iterdir()) == [place]


def test_written_where_a_folder_is(tmp_path):
    """A folder in the file's place is refused, and nothing is left beside it."""
    good = read_task_set(written(tmp_path, UNIT))
    (tmp_path / "sets" / "tasks.jsonl").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_task_set(good, tmp_path / "sets" / "tasks.jsonl")
    assert [one.name for one in (tmp_path / "sets").iterdir()] == ["tasks.jsonl"]


def test_unwritable(tmp_path):
    """A set that cannot be written, for its place or its text, is refused."""
    good = read_task_set(written(tmp_path, UNIT))
    with pytest.raises(InputError, match="cannot be written"):
        write_task_set(good, tmp_path / "absent" / "tasks.jsonl")
    with pytest.raises(InputError):
        write_task_set(replace(good, about="\ud800"), tmp_path / "tasks.jsonl")
