"""The page of an audit's report."""

import copy
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.audit.report.pages import Page
from tests.audit.report.results import sample_result

from kvbaton.audit.report.page import render
from kvbaton.audit.report.reading import Fields, visible_text
from kvbaton.audit.report.verdict import card, verdict_sentence
from kvbaton.types import JSON

FORBIDDEN = re.compile(r"\b(nan|NaN|None|inf|Infinity|null|True|False)\b")
HEADINGS = [
    "Verdict", "Was content transferred at all?", "Effects and their intervals",
    "Time to the first token", "From which length on", "Quality of the answers", "Verdicts",
    "Where the gain comes from", "Answers that flipped", "Failures and warnings", "Method",
]  # fmt: skip


def page_of(result: JSON) -> Page:
    """The parsed page of a result."""
    return Page(render(Fields(result)))


def treated(**changes: Any) -> JSON:
    """The sample with changes in T3."""
    result = sample_result()
    result["treatments"]["T3"].update(changes)
    return result


def only(*names: str) -> JSON:
    """The sample with some treatments only."""
    result = sample_result()
    result["treatments"] = {name: result["treatments"][name] for name in names}
    return result


@pytest.fixture(scope="module")
def page() -> Page:
    """The sample's page."""
    return page_of(sample_result())


def test_sections_come_in_the_order_in_which_they_are_needed(page: Page) -> None:
    """The verdict is first, then content, effects, times, lengths, quality, and how it was done."""
    found = re.findall(r"<h2[^>]*>([^<]+)</h2>", page.source)
    assert found == HEADINGS
    assert len(page.every("h1")) == 1


def test_the_page_is_well_formed_and_its_ids_are_unique(page: Page) -> None:
    """Every element is closed in its place, no id is used twice, and every reference leads."""
    assert page.unclosed == []
    assert len(page.ids) == len(set(page.ids))
    wanted = {a["href"][1:] for _, a in page.elements if a.get("href", "").startswith("#")}
    for key in ("aria-labelledby", "aria-describedby"):
        wanted |= {a[key] for _, a in page.elements if key in a}
    wanted |= {a["xlink:href"][1:] for _, a in page.elements if "xlink:href" in a}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert wanted <= set(page.ids)


def test_the_page_asks_for_nothing_from_elsewhere(page: Page) -> None:
    """No script, no address of another place, and a policy that forbids to load anything."""
    assert page.every("script") == []
    names = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    assert set(re.findall(r"https?://[^\"'\s<)]+", page.source)) <= set(names)
    assert not re.search(r"@import|url\((?!#)", page.source)
    policy = [m["content"] for m in page.every("meta") if "http-equiv" in m]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_every_table_has_a_caption_and_scopes(page: Page) -> None:
    """Each table names itself, its columns and its rows, and scrolls in a place of its own."""
    tables = page.every("table")
    assert len(page.every("caption")) == len(tables) >= 20
    assert all(head["scope"] in ("col", "row") for head in page.every("th"))
    scrolling = [a for a in page.every("div") if a.get("class") == "scroll"]
    assert len(scrolling) == len(tables)
    assert all(a["tabindex"] == "0" and a["aria-labelledby"] in page.ids for a in scrolling)


def test_every_chart_has_a_name_a_text_and_its_numbers(page: Page) -> None:
    """Each picture says what it shows, in words with the numbers, and has them as a table."""
    charts = page.every("svg")
    assert len(charts) == len(page.every("figure")) == 7
    assert all(chart["role"] == "img" for chart in charts)
    for chart in charts:
        assert {chart["aria-labelledby"], chart["aria-describedby"]} <= set(page.ids)
    assert page.text.count("Numbers of this chart") == 7
    assert "T3 first token 8.3x faster [7.9, 8.8]" in page.text
    assert "T3 +0.5 [\u22121.4, +2.4]" in page.text
    assert "T4 (another conversation) 1.5%" in page.text
    assert "T3 pays from 110 [88, 138] tokens on" in page.text


def test_divergence_and_flips_come_before_accuracy(page: Page) -> None:
    """In the quality table the columns of KL and flips stand left of those of right answers."""
    heads = re.search(r"Quality by treatment.*?</thead>", page.source, re.DOTALL)
    assert heads is not None
    columns = re.findall(r"<th[^>]*>([^<]+)</th>", heads.group(0))
    assert columns[1:4] == ["KL, x noise floor", "KL, nats", "choices flipped"]
    assert columns.index("right") > 3


SENTENCES = [
    (
        {},
        "Handing the cache over pays: first token 8.3x faster [7.9, 8.8], answers as good as by "
        "text within 5 points.",
    ),
    (
        {"verdict": "undecided", "quality_verdict": "undecided", "units_needed": 130,
         "accuracy_difference_points": -1.0, "accuracy_difference_ci_points": [-7.0, 5.0]},
        "Not decided: first token 8.3x faster [7.9, 8.8], answers \u22121.0 [\u22127.0, +5.0] "
        "points against text, which a margin of 5 leaves open. About 130 units would decide it; "
        "this audit had 40.",
    ),
    (
        {"verdict": "harmful", "quality_verdict": "harmful",
         "accuracy_difference_points": -12.0, "accuracy_difference_ci_points": [-18.0, -6.0]},
        "Handing the cache over does harm: answers worse than by text by \u221212.0 "
        "[\u221218.0, \u22126.0] points, first token 8.3x faster [7.9, 8.8].",
    ),
    (
        {"verdict": "equivalent", "speed_verdict": "same", "ttft_ratio": 1.0},
        "Handing the cache over makes no difference that matters: the first token comes as soon "
        "as by text, answers as good as by text within 5 points.",
    ),
    (
        {"verdict": "pays", "quality_verdict": "better", "accuracy_difference_points": 8.0,
         "accuracy_difference_ci_points": [6.0, 10.0]},
        "Handing the cache over pays: first token 8.3x faster [7.9, 8.8], answers better than by "
        "text by +8.0 [+6.0, +10.0] points.",
    ),
    (
        {"verdict": "undecided", "speed_verdict": "undecided", "ttft_ratio": None,
         "quality_verdict": "undecided", "accuracy_difference_points": None},
        "Not decided: the first token was not timed, answers were not compared.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), SENTENCES)
def test_the_verdict_is_one_plain_sentence(changes: JSON, expected: str) -> None:
    """Each verdict says what it rests on, and what is missing where it is open."""
    assert verdict_sentence(Fields(treated(**changes))) == expected


def test_another_candidate_is_named_where_there_is_no_whole_cache() -> None:
    """Without T3 the first candidate is judged, under its name."""
    result = sample_result()
    del result["treatments"]["T3"]
    assert verdict_sentence(Fields(result)).startswith("Handing the cache over pays (T1): ")


def test_a_run_that_fell_back_says_so() -> None:
    """Where many trials went by text, the sentence says how many."""
    sentence = verdict_sentence(Fields(treated(fallback_share=0.25)))
    assert sentence.endswith("within 5 points. But 25% of the trials fell back to text.")


def test_several_pairs_have_their_own_verdicts_on_the_card() -> None:
    """The card names each pair of models with what holds for it."""
    row = {"by": "pair", "treatment": "T3"}
    strata = [
        {**row, "value": "small/BF16", "verdict": "pays"},
        {**row, "value": "large/BF16", "verdict": "undecided"},
        {**row, "value": "large/BF16", "verdict": "harmful", "treatment": "T1"},
    ]
    found = card(Fields(sample_result(strata=strata)))
    assert found.pairs == "By pair of models: small/BF16 pays; large/BF16 undecided."
    assert card(Fields(sample_result())).pairs == ""


def test_a_route_that_always_pays_is_not_given_a_length_of_its_own() -> None:
    """Faster at the shortest length that was measured: that many tokens or fewer."""
    result = sample_result()
    result["break_even"]["T3"] |= {"tokens": 32, "ci": [32, 32], "at_most": True}
    page = page_of(result)
    assert "T3 pays from 32 or fewer tokens of context on" in page.text
    assert "of context, or fewer" in page.text and "T3:tiny pays from 160 [128, 200]" in page.text


def test_nothing_measured_is_said_in_words() -> None:
    """A result without treatments says that there is nothing to judge."""
    empty = page_of({})
    assert "Nothing to judge: no hand-off was measured." in empty.text
    assert not FORBIDDEN.search(empty.text)
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", empty.source) == HEADINGS


FAILURE = re.compile(r"What failed.*?</table>", re.DOTALL)


def failures(*rows: JSON) -> list[list[str]]:
    """Cells of the table of failures, row by row."""
    found = FAILURE.search(page_of(sample_result(failed=list(rows))).source)
    assert found is not None
    return [
        re.findall(r"<t[hd][^>]*>(?:<[^>]+>)*([^<]*)", row)
        for row in re.findall(r"<tr>.*?</tr>", found.group(0), re.DOTALL)[1:]
    ]


@pytest.mark.parametrize("what", ["hand-off", "sender", "quality", "timed", "floor"])
def test_a_failure_says_at_what_and_how_often(what: str) -> None:
    """Its kind, its count and its first unit stand in the row."""
    row = {"pair": "a/BF16", "treatment": "T3", "what": what, "code": "out-of-memory",
           "sentence": "no room", "count": 12, "unit": "u004"}  # fmt: skip
    assert failures(row) == [["T3", what, "12", "u004", "a/BF16", "out-of-memory", "no room"]]


def test_a_failure_without_a_count_is_one() -> None:
    """A record that does not say how often, or at what, is one failure with a dash."""
    [row] = failures({"treatment": "T1", "code": "x", "sentence": "y"})
    assert (row[0], row[2], row[-1]) == ("T1", "1", "y")


def test_what_was_only_timed_is_said_in_words() -> None:
    """Treatments without any answer are named; those with some, and the references, are not."""
    result = sample_result()
    for name in ("T0", "T2", "S:all"):
        keys = [
            key for key in result["treatments"][name]
            if key.startswith(("accuracy", "score", "kl", "flips", "equivalence"))
        ]  # fmt: skip
        result["treatments"][name].update(dict.fromkeys(keys), quality_verdict="", flops=None)
    result["treatments"]["T1"]["kl"] = None
    text = page_of(result).text
    assert "so nothing is known of their answers: T2, S:all." in text
    assert "nothing is known of their answers" not in page_of(sample_result()).text


HOSTILE = "<script>alert(1)</script>&\"'><img src=x onerror=alert(2)>"


def spoiled(value: Any, text: str) -> Any:
    """The same result with a text in place of every text, and at the end of treatments' names."""
    if isinstance(value, dict):
        return {key: spoiled(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [spoiled(one, text) for one in value]
    return text if isinstance(value, str) else value


def test_markup_in_any_text_stays_text() -> None:
    """A script in a name, a question, an answer or a sentence is shown, not run."""
    result = sample_result()
    roles = {name: (one["role"], one["reference"]) for name, one in result["treatments"].items()}
    bad = spoiled(result, HOSTILE)
    for name, (role, reference) in roles.items():
        bad["treatments"][name].update(role=role, reference=reference)
    bad["treatments"] = {f"{name}{HOSTILE}": one for name, one in bad["treatments"].items()}
    page = page_of(bad)
    assert page.every("script") == []
    assert page.every("img") == []
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert page.unclosed == []
    assert HOSTILE in page.text


def test_what_cannot_be_seen_is_named() -> None:
    """Direction marks, controls and lone surrogates in answers are written out."""
    result = only("T0")
    result["flip_examples"][0].update(
        text="4\u202e714\x1b[31m\ud800", reference_text="a\u0000b", expected="\u2067x"
    )
    text = page_of(result).text
    assert "4\u27e8U+202E\u27e9714\u27e8U+001B\u27e9[31m\u27e8U+D800\u27e9" in text
    assert "\u27e8U+0000\u27e9" in text
    assert "\u202e" not in text
    assert "\u2067" not in text


def test_visible_text_keeps_what_writing_needs() -> None:
    """Line ends, joiners and letters of any script stay as they are."""
    plain = "a\n\tb \u0645\u06cc\u200c\u062e\u0648 \u738b\u82b3 \U0001f469\u200d\U0001f680"
    assert visible_text(plain) == plain


def test_only_the_part_that_differs_is_marked(page: Page) -> None:
    """Of two answers the same beginning and end stay unmarked."""
    assert "<bdi>The code is 44<mark>17</mark>.</bdi>" in page.source
    assert "<bdi>The code is 44<mark>71</mark>.</bdi>" in page.source


def test_an_empty_cell_says_why() -> None:
    """P99 from too few trials is a dash with its reason, also for who hears the page."""
    result = only("T3")
    result["treatments"]["T3"]["ttft_s"] = {"p50": 0.1, "p90": None, "p99": None}
    text = page_of(result).text
    assert "\u2013: too few trials: P50 and P90 need 10, P99 needs 100" in text


def all_by_text() -> JSON:
    """A run in which every hand-off fell back."""
    result = sample_result()
    for one in result["treatments"].values():
        one.update(
            routes={"text": 120}, fallback_share=1.0, bytes_moved=0.0, ttft_ratio=1.0,
            ttft_ratio_ci=[0.98, 1.02], speed_verdict="same", verdict="equivalent",
            as_treated={"timed": 0, "questions": 0, "ttft_ratio": None, "ttft_ratio_ci": None,
                        "accuracy": None, "accuracy_difference_points": None},
        )  # fmt: skip
    return result


def extremes() -> JSON:
    """Zeros in one treatment, numbers beyond all sense in another."""
    result = treated(
        ttft_ratio=1e-300, ttft_ratio_ci=[1e-305, 1e-290], accuracy_difference_points=-1e9,
        kl_multiple=1e300, bytes_moved=1e300, flops=1e308,
    )  # fmt: skip
    result["treatments"]["T1"].update(
        ttft_ratio=0.0, kl=0.0, kl_multiple=0.0, accuracy=0.0, flops=0.0
    )
    return result


BARE = {"strata": [], "samples": {}, "noise_floor_kl": 0.0, "noise_floor_flips": 0.0}
NEVER = {"T3": {"tokens": None, "ci": None, "points": [], "why": "never faster"}}
SHAPES: dict[str, JSON] = {
    "no controls": only("T0", "T1", "T3"),
    "text only": {**only("T0"), **BARE},
    "neither strata nor samples nor floor": sample_result(**BARE),
    "single unit": sample_result(units=1, questions=1, samples={"T0": [0.8], "T3": [0.1]}),
    "all by text": all_by_text(),
    "all failed": sample_result(treatments={}, attribution={}, break_even={}, samples={}),
    "several pairs": sample_result(pairs=["a/BF16", "b/F32", "c/BF16"], break_even=NEVER),
    "extremes": extremes(),
    "other kinds": treated(ttft_ratio="fast", tests=[], routes=None, why=3, kl=True),
}


@pytest.mark.parametrize("result", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_a_result_gives_a_page(result: JSON) -> None:
    """Whatever is missing, the page is whole, and no number is shown that is none."""
    page = page_of(result)
    assert page.unclosed == []
    assert not FORBIDDEN.search(page.text)
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", page.source) == HEADINGS


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value but the top."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    found = [path] if path else []
    return found + [p for key, one in inside for p in places(one, (*path, key))]


SMALL = only("T0", "T3", "T4", "S:all")
SMALL["samples"] = {"T0": [0.8, 0.9, 1.0], "T3": [0.1, 0.1, 0.2]}
PLACES = [place for place in places(SMALL) if place[0] != "samples"] + [("samples",)]


def without(result: JSON, gone: list[tuple[Any, ...]], instead: Any) -> JSON:
    """A copy with other values in some places; places that are gone with others are left out."""
    changed = copy.deepcopy(result)
    for *path, last in gone:
        holder: Any = changed
        try:
            for key in path:
                holder = holder[key]
            holder[last]
        except (KeyError, IndexError, TypeError):
            continue
        holder[last] = instead
    return changed


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.reuse, Phase.generate],
)  # fmt: skip
@given(
    gone=st.lists(st.sampled_from(PLACES), min_size=1, max_size=40, unique=True),
    instead=st.sampled_from([None, None, float("nan"), float("inf"), -1.0, "", (), {}]),
)
def test_a_page_needs_no_part_of_a_result(gone: list[tuple[Any, ...]], instead: Any) -> None:
    """Any parts can be null or of another kind: the page is whole and shows no such number."""
    page = page_of(without(SMALL, gone, instead))
    assert page.unclosed == []
    assert not FORBIDDEN.search(page.text)
