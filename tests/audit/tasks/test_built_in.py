"""Built-in sets: the same for everybody, of the length that was asked for, and private."""

import ast
import random
import re

import pytest

from kvbaton.audit.scoring import scorer
from kvbaton.audit.tasks.built_in import BUILT_IN, DEFAULT, built_in_set
from kvbaton.audit.tasks.files import read_task_set, task_set_bytes, write_task_set
from kvbaton.audit.tasks.passages import chinese, code, everything, filled, prose
from kvbaton.audit.tasks.private import Values
from kvbaton.audit.tasks.problems import PROBLEMS
from kvbaton.audit.tasks.reviews import function
from kvbaton.audit.tasks.schema import Question, Relevance
from kvbaton.errors import InputError

FAMILIES = sorted(BUILT_IN)
PRIVATE = [name for name in FAMILIES if name not in ("nothing-needed", "summarize-answer")]


def count(text: str) -> int:
    """Tokens of a tokenizer that makes one of every three bytes."""
    return -(-len(text.encode()) // 3)


def contents(unit) -> str:
    """What the sender's messages say, and its own answer where that is given."""
    return "\n".join([*(said["content"] for said in unit.messages), unit.message])


def private(question: Question) -> set[str]:
    """Values that only the sender was told: for code, the numbers of its tests."""
    if question.scorer == "code":
        return set(re.findall(r"\b\d{4}\b", question.tests))
    return set(question.answers)


@pytest.mark.parametrize("name", FAMILIES)
def test_same_seed(name, tmp_path):
    """A seed gives the same bytes, another seed others; a smaller set begins a larger one."""
    first = built_in_set(name, units=4, count=count, seed=7)
    again = built_in_set(name, units=4, count=count, seed=7)
    assert task_set_bytes(first) == task_set_bytes(again)
    assert first.digest == again.digest
    assert built_in_set(name, units=4, count=count, seed=8).digest != first.digest
    assert built_in_set(name, units=2, count=count, seed=7).units == first.units[:2]
    written = write_task_set(first, tmp_path / "tasks.jsonl")
    assert written == first == read_task_set(tmp_path / "tasks.jsonl")


@pytest.mark.parametrize("name", FAMILIES)
def test_lengths(name):
    """Units take the lengths in turn, and are as long as was asked for within 15%."""
    lengths = (400, 1000, 3000, 6000)
    made = built_in_set(name, units=8, count=count, lengths=lengths)
    for number, unit in enumerate(made.units):
        wanted = lengths[number % 4]
        have = sum(count(message["content"]) for message in unit.messages)
        assert abs(have - wanted) <= 0.15 * wanted
        assert len(unit.questions) == BUILT_IN[name].questions
        assert unit.messages[-1]["role"] == "user"


@pytest.mark.parametrize("name", PRIVATE)
def test_private(name):
    """Private values stand in their own unit, and in no other unit and in no question."""
    made = built_in_set(name, units=6, count=count, lengths=(400,))
    values = [private(question) for unit in made.units for question in unit.questions]
    everywhere = [value for found in values for value in found]
    assert len(everywhere) == len(set(everywhere))
    for place, unit in enumerate(made.units):
        for value in set().union(*map(private, unit.questions)):
            judge = scorer("contains")
            told = Question(id="q", text="", answers=(value,))
            assert judge(told, contents(unit)).right
            for other in (*made.units[:place], *made.units[place + 1 :]):
                assert not judge(told, contents(other)).right
            for question in unit.questions:
                assert value not in question.text + question.opening


@pytest.mark.parametrize("name", FAMILIES)
def test_questions(name):
    """As many questions as were asked for, of which no two are alike."""
    (unit,) = built_in_set(name, units=1, count=count, questions=10, lengths=(1500,)).units
    assert len({question.text for question in unit.questions}) == 10
    assert unit.message_tokens <= 48


def test_nothing_needed():
    """The negative control's questions hold their answers; its contexts hold none."""
    made = built_in_set("nothing-needed", units=6, count=count)
    told = "\n".join(contents(unit) for unit in made.units)
    for unit in made.units:
        assert unit.relevance is Relevance.NONE
        for question in unit.questions:
            assert question.answers[0] in question.text
            assert question.answers[0] not in told


def test_languages():
    """Chinese sets are in Chinese; the default is English and highly relevant."""
    (unit,) = built_in_set("private-facts-zh", units=1, count=count).units
    assert unit.language == "zh"
    assert re.search("[a-zA-Z]", contents(unit)) is None
    (unit,) = built_in_set(units=1, count=count).units
    assert (unit.language, unit.relevance) == ("en", Relevance.HIGH)
    assert built_in_set(units=1, count=count).name == DEFAULT


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_problems(problem):
    """The right function passes its tests, the draft does not, and the review tells no number."""
    mine = problem.filled("1234", "5678")
    tests = "\n".join(f"assert {test.format(f=mine.name)}" for test in mine.tests)
    question = Question(id="q", text="", scorer="code", tests=tests)
    judge = scorer("code")
    assert judge(question, function(mine.head, mine.body)).right
    assert not judge(question, function(mine.head, mine.draft)).right
    assert not re.search(r"LOW|HIGH|\d{4}", mine.review)
    for number in ("1234", "5678"):
        changed = function(mine.head, mine.body).replace(number, "3456")
        assert number not in mine.specification or not judge(question, changed).right


def test_problems_are_many():
    """There are more than a dozen functions to review, all different."""
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS) == 14


def test_passages():
    """Passages are real text of the size that is asked for, each once."""
    for pieces, least in ((prose(), 300), (code(), 100), (chinese(), 40)):
        assert len(pieces) == len(set(pieces)) >= least
    assert all("\n" not in piece and piece.endswith((".", "!", "?")) for piece in prose())
    for piece in code():
        assert piece.startswith("def ")
        ast.parse(piece)


def test_filled():
    """Private pieces are spread among running ones, in their order."""
    text = filled(random.Random(1), len, 100, ["aaaa", "bbbb", "cccc"], ["X", "Y"], joint=" ")
    parts = text.split(" ")
    assert [part for part in parts if part in "XY"] == ["X", "Y"]
    running = "".join(part[0] for part in parts if part not in "XY")
    assert running in "abc" * 9
    assert 93 <= len(text) <= 102
    assert filled(random.Random(1), len, 3, ["aaaa"], ["X", "Y"], joint=" ") == "X Y"


def test_values():
    """Codes have four different digits, share no pair in a unit, and stand in no passage."""
    values = Values("7")
    seen: set[str] = set()
    for _ in range(150):
        codes = values.codes(5)
        pairs = [one[place : place + 2] for one in codes for place in range(3)]
        assert len(pairs) == len(set(pairs))
        assert all(len(set(one)) == 4 and one[0] != "0" for one in codes)
        assert seen.isdisjoint(codes)
        seen.update(codes)
    words = [values.word() for _ in range(200)]
    assert len(set(words)) == 200
    assert not any(word in everything() for word in words)
    with pytest.raises(InputError, match="not enough private codes"):
        values.codes(31)  # they would have 93 pairs of digits, of which there are 90


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "facts"}, "no built-in"),
        ({"units": 0}, "not 0"),
        ({"units": 1001}, "not 1001"),
        ({"questions": 0}, "not 0"),
        ({"questions": 11}, "not 11"),
        ({"lengths": ()}, "no length"),
        ({"lengths": (512, 100)}, "100 tokens are too few"),
    ],
)
def test_refused(options, words):
    """Numbers out of range and unknown names are refused."""
    with pytest.raises(InputError, match=words):
        built_in_set(**{"name": DEFAULT, "units": 1, "count": count, **options})
