"""Scorers: values that can be counted by hand."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.audit.scoring import Judgement, is_scorer, known_scorers, scorer
from kvbaton.audit.scoring.code import extracted
from kvbaton.audit.scoring.rouge import common_subsequence
from kvbaton.audit.tasks.schema import Question
from kvbaton.errors import InputError


def asked(*answers: str, **options: str) -> Question:
    """A question with these answers."""
    return Question(id="q7", text="?", answers=answers, **options)


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("1234", "It is 1234.", True),
        ("1234", "It is 12345.", False),
        ("1234", "It is 01234", False),
        ("1234", "A1234", True),
        ("1234", "代码是1234。", True),
        ("cat", "The CAT sat.", True),
        ("cat", "A category", False),
        ("cat", "concat", False),
        ("北京", "首都是北京市。", True),
        ("Paris", "首都Paris是", True),
        ("new york", "NEW\n  York", True),
        ("١٢", "12", False),
        ("1234", "\uff11\uff12\uff13\uff14", True),
        ("-5", "It is -5", True),
        ("a_b", "x = a_b", True),
        ("velm", "velm_b", True),
        ("x", "", False),
    ],
)
def test_contains(answer, text, right):
    """An answer counts where it stands as a whole word or number."""
    assert scorer("contains")(asked(answer), text) == Judgement(float(right), right)
    assert scorer("contains")(asked("absent", answer), text).right is right


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("Paris", " paris. ", True),
        ("Paris", "Paris, France", False),
        ("New York", "new  york!", True),
        ("4821", "4822", False),
        ("北京。", "北京", True),
        ("...", "...", False),
    ],
)
def test_exact(answer, text, right):
    """Case, space and punctuation do not count, every word does."""
    assert scorer("exact")(asked(answer), text) == Judgement(float(right), right)


@pytest.mark.parametrize(
    ("answer", "text", "score"),
    [
        ("the cat sat", "the cat sat", 1),
        ("the cat sat down", "a cat sat", 4 / 7),  # shared 2 of 3 and 4
        ("a a b", "a b b", 2 / 3),  # shared a, b
        ("北京市", "北京", 4 / 5),
        ("cat", "dog", 0),
        ("cat", "", 0),
    ],
)
def test_f1(answer, text, score):
    """F1 counts shared words, each as often as both have it."""
    found = scorer("f1")(asked(answer), text)
    assert found.score == pytest.approx(score)
    assert found.right is (score >= 0.5)


@pytest.mark.parametrize(
    ("answer", "text", "score"),
    [
        # Lin 2004, section 3.1: police killed the gunman; both candidates have 4 words.
        ("police killed the gunman", "police kill the gunman", 3 / 4),
        ("police killed the gunman", "the gunman kill police", 2 / 4),
        ("a b c d e", "a c e", 6 / 8),
        ("北京是首都", "首都是北京", 2 / 5),
        ("cat", "", 0),
    ],
)
def test_rouge_l(answer, text, score):
    """ROUGE-L is the F of the longest common subsequence."""
    found = scorer("rouge-l")(asked(answer), text)
    assert found.score == pytest.approx(score)


def longest(one: str, other: str) -> int:
    """The longest common subsequence by its recursive definition."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest(one[1:], other[1:])
    return max(longest(one[1:], other), longest(one, other[1:]))


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_common_subsequence(one, other):
    """The table gives what the definition gives."""
    assert common_subsequence(one, other) == longest(one, other)


def test_best_answer():
    """The best of several answers counts."""
    assert scorer("f1")(asked("dog", "cat sat"), "cat").score == pytest.approx(2 / 3)
    assert scorer("rouge-l")(asked("dog", "cat sat"), "cat").score == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.\n```\ny\n```", "x = 1\n"),
        ("```\nx = 1\ny =", "x = 1\ny ="),
        ("x = 1", "x = 1"),
        ("```py\n```", ""),
    ],
)
def test_extracted(text, code):
    """The first fenced block is the code, or everything is."""
    assert extracted(text) == code


def test_code():
    """Code with its opening passes its tests, or says which error it made."""
    question = asked(
        scorer="code", opening="```python\ndef twice(x):\n", tests="assert twice(4) == 8"
    )
    judge = scorer("code")
    assert judge(question, "    return 2 * x\n```\nThat is it.") == Judgement(1.0, right=True)
    assert judge(question, "    return 2 * x\n\ndef other(") == Judgement(1.0, right=True)
    wrong = judge(question, "    return x")
    assert (wrong.score, wrong.right, wrong.note[:14]) == (0.0, False, "AssertionError")
    assert judge(question, "    return y").note == "NameError: name 'y' is not defined"
    assert judge(question, ")").note.startswith("NameError") or judge(question, ")").note
    with pytest.raises(InputError, match="needs tests"):
        judge(asked(scorer="code"), "x")


OWN = """
from kvbaton.audit.scoring import Judgement

def half(question, text): return 0.5
def little(question, text): return 0.49
def said(question, text): return text in question.answers
def full(question, text): return Judgement(0.3, True, "as it is")
def fails(question, text): return {}[text]
def words(question, text): return "good"
def much(question, text): return 1.5
def none(question, text): return None
def nan(question, text): return float("nan")
NUMBER = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "own_scorers.py").write_text(OWN)
    (tmp_path / "broken_scorers.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_scorers", "broken_scorers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "judgement"),
    [
        ("half", Judgement(0.5, right=True)),
        ("little", Judgement(0.49, right=False)),
        ("said", Judgement(1.0, right=True)),
        ("full", Judgement(0.3, right=True, note="as it is")),
    ],
)
@pytest.mark.usefixtures("own")
def test_own(name, judgement):
    """A function of one's own gives a number, a boolean or a judgement."""
    assert scorer(f"own_scorers:{name}")(asked("yes"), "yes") == judgement


@pytest.mark.parametrize(
    ("name", "words"),
    [("fails", "KeyError"), ("words", "'good'"), ("much", "1.5"), ("none", "None"), ("nan", "nan")],
)
@pytest.mark.usefixtures("own")
def test_own_fails(name, words):
    """A scorer that raises or gives nonsense is an error at the question."""
    with pytest.raises(InputError, match=words) as caught:
        scorer(f"own_scorers:{name}")(asked("yes"), "yes")
    assert caught.value.at == "q7"


@pytest.mark.parametrize(
    "name", ["own_scorers:absent", "own_scorers:NUMBER", "broken_scorers:x", "no_such_module:x"]
)
@pytest.mark.usefixtures("own")
def test_own_absent(name):
    """A function that is not there is refused before anything is scored."""
    with pytest.raises(InputError) as caught:
        scorer(name)
    assert caught.value.at == name


def test_names():
    """Five scorers are built in; other names must be functions of modules."""
    assert known_scorers() == ("exact", "contains", "f1", "rouge-l", "code")
    assert is_scorer("my.module:function")
    for name in ("best", "a:b:c", "a b:c", ":c", ""):
        assert not is_scorer(name)
        with pytest.raises(InputError, match="not known"):
            scorer(name)
