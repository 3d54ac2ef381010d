"""Text gates: what passes, what is taken out, what is refused."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy.filter_files import MAX_FILE_BYTES, filters_from_toml, parse_filters
from kvbaton.policy.filters import (
    MAX_PATTERNS,
    FilterOutcome,
    Passed,
    PatternFilter,
    Redact,
    Refuse,
    run_filters,
)
from kvbaton.types import ReasonCode

DIGITS = PatternFilter("digits", {"number": r"[0-9]+"}, replacement="#")
WORDS = PatternFilter("words", {"key": "secret"}, replacement="_")
NO_X = PatternFilter("no-x", {"x": "x"}, action="refuse")
TEXTS = st.text(st.sampled_from("abcx019 sceret#_\n"), max_size=60)


def passes(text: str) -> Passed:
    """Everything is fine."""
    return Passed()


# --- one filter ----------------------------------------------------------------------------------


def test_a_pattern_is_taken_out_wherever_it_stands() -> None:
    """Each match gives way to the replacement, and is counted."""
    assert DIGITS("a 12 b 3") == Redact("a # b #", 2)
    assert DIGITS("nothing") == Passed()


def test_a_pattern_can_refuse() -> None:
    """With action ``refuse`` nothing of the text is given back."""
    assert isinstance(NO_X("a x b"), Refuse)
    assert NO_X("a b") == Passed()


def test_letters_match_in_either_case_on_request() -> None:
    """``ignore_case`` holds for all patterns of a filter."""
    loose = PatternFilter("w", {"key": "secret"}, ignore_case=True)
    assert loose("SECRET") == Redact("[redacted]", 1)
    assert PatternFilter("w", {"key": "secret"})("SECRET") == Passed()


def test_what_a_redaction_puts_together_is_searched_again() -> None:
    """An empty replacement cannot be used to smuggle a match through."""
    gone = PatternFilter("ab", {"ab": "ab"}, replacement="")
    assert gone("aabb") == Redact("", 2)


def test_what_no_round_ends_is_refused() -> None:
    """More layers than there are rounds: refused, not passed on half done."""
    gone = PatternFilter("ab", {"ab": "ab"}, replacement="")
    assert isinstance(gone("a" * 50 + "b" * 50), Refuse)


@given(TEXTS)
def test_nothing_that_a_pattern_matches_is_left(text: str) -> None:
    """What a filter gives back, or lets pass, has no match, whatever the text."""
    ruling = WORDS(text)
    left = ruling.text if isinstance(ruling, Redact) else text
    assert "secret" not in left
    assert isinstance(ruling, Passed) == ("secret" not in text)


@given(TEXTS)
def test_patterns_that_match_nothing_change_nothing(text: str) -> None:
    """A match of no length is no match."""
    ahead = PatternFilter("ahead", {"before": "(?=x)", "z": "z"}, replacement="-")
    assert ahead(text) == Passed()


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"patterns": {}}, "$.patterns"),
        ({"patterns": {f"p{i}": "a" for i in range(MAX_PATTERNS + 1)}}, "$.patterns"),
        ({"patterns": {"open": "("}}, "$.patterns.open"),
        ({"patterns": {"long": "a" * 5000}}, "$.patterns.long"),
        ({"patterns": {"nothing": "a*"}}, "$.patterns.nothing"),
        ({"patterns": {"own": "redact"}}, "$.patterns.own"),
        ({"patterns": {"a": "a"}, "action": "drop"}, "$.action"),
        ({"patterns": {"a": "a"}, "name": ""}, "$.name"),
        ({"patterns": {"a": "a"}, "name": "two\nlines"}, "$.name"),
        ({"patterns": {"a": "a"}, "name": "n" * 65}, "$.name"),
    ],
)
def test_a_filter_that_cannot_work_is_not_made(options: dict[str, Any], at: str) -> None:
    """Each way in which patterns can be wrong has its place in the error."""
    with pytest.raises(InputError) as caught:
        PatternFilter(**{"name": "f", **options})
    assert caught.value.at == at


def test_a_pattern_may_match_the_replacement_where_nothing_is_replaced() -> None:
    """The replacement of a filter that refuses is never used."""
    assert isinstance(PatternFilter("f", {"r": "redacted"}, action="refuse")("redacted"), Refuse)


# --- several filters -----------------------------------------------------------------------------


def test_each_filter_sees_what_the_one_before_has_left() -> None:
    """The order counts, and the names stand in it."""
    seen: list[str] = []

    def notes(text: str) -> Passed:
        seen.append(text)
        return Passed()

    outcome = run_filters([DIGITS, notes, WORDS, notes], "secret 12")
    assert outcome == FilterOutcome("_ #", ("digits", "words"), (1, 1))
    assert seen == ["secret #", "_ #"]
    assert not outcome.passed


def test_the_first_refusal_ends_it() -> None:
    """What was taken out before is named, the filters behind it are not asked."""

    def never(text: str) -> Passed:
        raise AssertionError(text)

    outcome = run_filters([DIGITS, NO_X, never], "x 1")
    assert (outcome.text, outcome.redacted) == ("", ("digits",))
    assert outcome.refusal is not None
    assert outcome.refusal.filter == "no-x"
    assert [r.code for r in outcome.reasons] == [
        ReasonCode.FILTER_REDACTED,
        ReasonCode.FILTER_REFUSED,
    ]


def test_no_filters_let_everything_pass() -> None:
    """Whoever has none gets the text as it was."""
    assert run_filters([], "a") == FilterOutcome("a")
    assert run_filters([passes], "a").passed


def test_a_filter_that_fails_refuses_and_what_it_raised_is_dropped() -> None:
    """Its words may hold the text, so only the kind of error is kept."""

    def fails(text: str) -> Passed:
        raise ValueError(f"cannot read {text}")

    outcome = run_filters([fails], "my secret")
    assert outcome.refusal is not None
    assert "secret" not in repr(outcome)
    assert "ValueError" in outcome.refusal.sentence


@pytest.mark.parametrize(
    "answer",
    [
        None, True, False, "text", Redact("\ud800"), Redact("a", 0), Redact("a", True),
        Redact(None), Passed,
    ],
)  # fmt: skip
def test_any_other_answer_is_a_refusal(answer: Any) -> None:
    """A filter that forgets to answer does not let anything pass."""
    outcome = run_filters([lambda text: answer], "abc")
    assert outcome.refusal is not None
    assert outcome.text == ""


def test_a_redaction_that_changes_nothing_has_passed() -> None:
    """Otherwise a filter that always answers ``Redact`` would turn every baton into text."""
    assert run_filters([lambda text: Redact(text, 3)], "abc").passed


def test_receipts_name_filters_and_say_nothing_of_the_text() -> None:
    """Neither what was found nor the filter's own words."""

    def tells(text: str) -> Refuse:
        return Refuse(f"found {text}")

    outcome = run_filters([WORDS, tells], "my secret key")
    assert [r.sentence for r in outcome.reasons] == [
        "the filter 'words' took something out of the text, at 1 place",
        "the filter 'tells' refused the text",
    ]


def test_a_filter_without_a_usable_name_is_an_error() -> None:
    """A name must be able to stand in a receipt."""

    class Odd:
        name = "a\nb"

        def __call__(self, text: str) -> Passed:
            return Passed()

    with pytest.raises(InputError):
        run_filters([Odd()], "a")


@given(TEXTS)
def test_what_filters_have_left_passes_them(text: str) -> None:
    """Running them again changes nothing: what leaves is clean by their own lights."""
    filters = [DIGITS, WORDS]
    left = run_filters(filters, text)
    assert run_filters(filters, left.text).passed


@given(TEXTS)
def test_filters_do_what_their_patterns_say(text: str) -> None:
    """Against plain substitutions, one behind the other."""
    expected = re.sub("secret", "_", re.sub("[0-9]+", "#", text))
    if "secret" in expected or "x" in expected:
        return
    outcome = run_filters([DIGITS, WORDS, NO_X], text)
    assert outcome.text == expected
    assert outcome.passed == (expected == text)


@given(TEXTS)
def test_a_refusal_gives_nothing_back(text: str) -> None:
    """Not even what was redacted before."""
    outcome = run_filters([DIGITS, NO_X], text)
    assert (outcome.refusal is not None) == ("x" in text)
    assert outcome.text == ("" if "x" in text else re.sub("[0-9]+", "#", text))


# --- files ---------------------------------------------------------------------------------------

FILE = """
[[filters]]
name = "addresses"
replacement = "(address)"
[filters.patterns]
mail = '[a-z]+@[a-z]+'

[[filters]]
name = "keys"
action = "refuse"
ignore_case = true
patterns = { key = 'BEGIN PRIVATE KEY' }
"""


def test_a_file_holds_filters_in_their_order(tmp_path: Path) -> None:
    """Everything that a pattern filter has can be written down."""
    path = tmp_path / "filters.toml"
    path.write_text(FILE)
    addresses, keys = filters_from_toml(path)
    assert addresses == PatternFilter(
        "addresses", {"mail": "[a-z]+@[a-z]+"}, replacement="(address)"
    )
    assert isinstance(keys("begin private key"), Refuse)
    assert run_filters([addresses, keys], "to ann@home").text == "to (address)"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", "$.filters"),
        ("filters = 3", "$.filters"),
        ("other = 3", "$"),
        ("[[filters]]\npatterns = {a = 'q'}", "$.filters[0]"),
        ("[[filters]]\nname = 'f'", "$.filters[0]"),
        ("[[filters]]\nname = 'f'\npatterns = 'a'", "$.filters[0].patterns"),
        ("[[filters]]\nname = 'f'\npatterns = {a = 3}", "$.filters[0].patterns.a"),
        ("[[filters]]\nname = 'f'\npatterns = {a = '('}", "$.filters[0].patterns.a"),
        ("[[filters]]\nname = 3\npatterns = {a = 'q'}", "$.filters[0].name"),
        ("[[filters]]\nname = 'f'\naction = 'x'\npatterns = {a = 'q'}", "$.filters[0].action"),
        ("[[filters]]\nname = 'f'\nignore_case = 1\npatterns = {a = 'q'}",
         "$.filters[0].ignore_case"),
        ("[[filters]]\nname = 'f'\ncolour = 1\npatterns = {a = 'q'}", "$.filters[0]"),
        ("[[filters]]\nname = 'f'\npatterns = {a = 'q'}\n" * 2, "$.filters[1].name"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, at: str) -> None:
    """One error for each way, with the path into the file and the file's name."""
    path = tmp_path / "filters.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        filters_from_toml(path)
    assert caught.value.at == at
    assert "filters.toml" in caught.value.sentence


@pytest.mark.parametrize("raw", [b"[[filters", b"\xff\xfe", b"#" * (MAX_FILE_BYTES + 1)])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, raw: bytes) -> None:
    """Not TOML, not UTF-8, too large."""
    path = tmp_path / "filters.toml"
    path.write_bytes(raw)
    with pytest.raises(InputError):
        filters_from_toml(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Gates that are asked for and are not there must not be silently absent."""
    with pytest.raises(InputError):
        filters_from_toml(tmp_path / "none.toml")


def test_tables_are_read_without_a_file() -> None:
    """What ``tomllib`` gives is enough."""
    (only,) = parse_filters({"filters": [{"name": "f", "patterns": {"a": "q"}}]})
    assert only("q") == Redact("[redacted]", 1)


# --- the guide -----------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "text-gates.md"


def block_of(language: str) -> str:
    """The guide's only block of a language."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    return str(code)


def test_the_example_prints_what_the_guide_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block runs, and its last comment is its output."""
    script = tmp_path / "guide.py"
    script.write_text(block_of("python"))
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip() == block_of("python").splitlines()[-1].removeprefix("# ")


def test_the_file_of_the_guide_is_read(tmp_path: Path) -> None:
    """And does what it says."""
    path = tmp_path / "filters.toml"
    path.write_text(block_of("toml"))
    filters = filters_from_toml(path)
    outcome = run_filters(filters, "to ann.lee@home.org, b@c.de")
    assert outcome.text == "to [address], [address]"
    refused = run_filters(filters, "-----begin rsa private key-----")
    sentences = [r.sentence for r in (*outcome.reasons, *refused.reasons)]
    assert block_of("text").splitlines() == sentences
