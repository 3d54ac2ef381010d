"""The verdict in plain words: the card at the top, and whether content was transferred at all."""

from __future__ import annotations

from dataclasses import dataclass

from kvbaton.audit.report.charts.content import OTHER, WHOLE, content_chart
from kvbaton.audit.report.numbers import (
    DASH,
    amount_text,
    count_text,
    faster_text,
    multiple_text,
    points_text,
    seconds_text,
    share_text,
)
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section, present, said
from kvbaton.audit.report.tables import TONES

MARGIN_POINTS = 5.0
"""Where the plan names none."""

MUCH_FALLBACK = 0.1
"""From this share of trials on, the sentence says that they went by text."""

_HEADS = {
    "pays": "Handing the cache over pays",
    "equivalent": "Handing the cache over makes no difference that matters",
    "harmful": "Handing the cache over does harm",
    "undecided": "Not decided",
}
_SPEEDS = {
    "same": "the first token comes as soon as by text",
    "": "the first token was not timed",
}
_CONTENT = {
    "transferred": "The content was transferred",
    "not needed": "Content was not needed",
    "undecided": "Whether content was transferred is not decided",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the card, with its name and what it is compared with."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a reader who reads nothing else must know."""

    sentence: str
    tone: str
    why: str
    content: str
    pairs: str
    facts: tuple[Fact, ...]


def margin_of(result: Fields) -> float:
    """Points inside which answers count as equally good."""
    margin = result.number("plan", "margin_points") or 0.0
    return margin if margin > 0 else MARGIN_POINTS


def judged(result: Fields) -> tuple[str, Fields] | None:
    """The treatment that the audit is about: the whole cache, else the first candidate."""
    candidates = {
        name: one
        for name, one in result.items("treatments")
        if one.text("role") == "candidate" or name == WHOLE
    }
    if not candidates:
        return None
    name = WHOLE if WHOLE in candidates else next(iter(candidates))
    return name, candidates[name]


def verdict_sentence(result: Fields) -> str:
    """The audit's answer in one sentence."""
    found = judged(result)
    if found is None:
        return "Nothing to judge: no hand-off was measured."
    name, one = found
    head = _HEADS.get(one.text("verdict"), _HEADS["undecided"])
    which = "" if name == WHOLE else f" ({name})"
    quality = _quality(one, margin_of(result))
    clauses = [_speed(one), quality]
    if one.text("verdict") == "harmful" and one.text("quality_verdict") == "harmful":
        clauses.reverse()
    return f"{head}{which}: {', '.join(clauses)}.{_fallen(one)}{_needed(result, one)}"


def card(result: Fields) -> Card:
    """The card."""
    found = judged(result)
    content = result.fields("content")
    return Card(
        sentence=verdict_sentence(result),
        tone=TONES.get(found[1].text("verdict") if found else "", "open"),
        why=found[1].text("why") if found else "",
        content=_content_sentence(content),
        pairs=_pairs_sentence(result, found[0]) if found else "",
        facts=_facts(result, *found) if found else (),
    )


def content_section(result: Fields) -> Section:
    """Whether the right cache answers what a wrong one of the same shape does not."""
    content = result.fields("content")
    points = content.number("points")
    compared = (
        f"Compared are {WHOLE}, the right cache, and {OTHER}, a cache of the same shape from "
        "another conversation."
        if points is not None
        else f"{WHOLE} and {OTHER} were not both measured, so this is not known."
    )
    why_it_matters = (
        "A wrong cache of the right shape is as fast as the right one. Only if it answers worse "
        "has the hand-off carried anything that the task needed."
    )
    sentence = _content_sentence(content)
    return Section(
        "content",
        "Was content transferred at all?",
        said(content.text("why") or sentence, compared, why_it_matters),
        charts=present(content_chart(result)),
    )


def _speed(one: Fields) -> str:
    ratio, bounds = one.number("ttft_ratio"), one.interval("ttft_ratio_ci")
    verdict = one.text("speed_verdict")
    if verdict == "same" or ratio is None:
        return _SPEEDS["same" if verdict == "same" else ""]
    open_yet = ", which the data leave open" if verdict == "undecided" else ""
    return f"first token {faster_text(ratio, bounds)}{open_yet}"


def _quality(one: Fields, margin: float) -> str:
    points = one.number("accuracy_difference_points")
    bounds = one.interval("accuracy_difference_ci_points")
    verdict = one.text("quality_verdict")
    if verdict == "equivalent":
        return f"answers as good as by text within {margin:g} points"
    if points is None:
        return "answers were not compared"
    size = points_text(points, bounds)
    if verdict == "better":
        return f"answers better than by text by {size} points"
    if verdict == "harmful":
        return f"answers worse than by text by {size} points"
    return f"answers {size} points against text, which a margin of {margin:g} leaves open"


def _fallen(one: Fields) -> str:
    share = one.number("fallback_share") or 0.0
    if share < MUCH_FALLBACK:
        return ""
    return f" But {share_text(share, decimals=0)} of the trials fell back to text."


def _needed(result: Fields, one: Fields) -> str:
    needed = one.number("units_needed")
    if needed is None:
        return ""
    had = one.count("units") or result.count("units")
    return f" About {count_text(needed)} units would decide it; this audit had {count_text(had)}."


def _content_sentence(content: Fields) -> str:
    said_so = _CONTENT.get(content.text("verdict"))
    if said_so is None:
        return ""
    points = content.number("points")
    if points is None:
        return f"{said_so}."
    size = points_text(points, content.interval("ci_points"))
    return f"{said_so}: the right cache against a wrong one of the same shape {size} points."


def _pairs_sentence(result: Fields, name: str) -> str:
    """What holds for each of several pairs of models."""
    verdicts = [
        f"{row.text('value')} {row.text('verdict') or 'not judged'}"
        for row in result.rows("strata")
        if row.text("by") == "pair" and row.text("treatment") == name
    ]
    return f"By pair of models: {'; '.join(verdicts)}." if len(verdicts) > 1 else ""


def _facts(result: Fields, name: str, one: Fields) -> tuple[Fact, ...]:
    text = dict(result.items("treatments")).get(one.text("reference") or "T0", Fields(None))
    break_even = result.number("break_even", name, "tokens")
    units, questions = result.count("units"), result.count("questions")
    needs = f"{one.count('units') or units} units, {one.count('questions') or questions} questions"
    facts = (
        Fact(
            "First token, median",
            seconds_text(one.number("ttft_s", "p50")),
            f"by text {seconds_text(text.number('ttft_s', 'p50'))}",
        ),
        Fact(
            "End to end",
            faster_text(one.number("e2e_ratio")),
            f"median {seconds_text(one.number('e2e_s', 'p50'))}",
        ),
        Fact(
            "Right answers",
            share_text(one.number("accuracy")),
            f"by text {share_text(one.number('accuracy_reference'))}",
        ),
        Fact(
            "Divergence (KL)",
            multiple_text(one.number("kl_multiple")),
            f"of the noise floor; {share_text(one.number('flips'))} of choices flip",
        ),
        Fact("Moved per hand-off", amount_text(one.number("bytes_moved"), "B"), "mean"),
        Fact("Pays from", f"{count_text(break_even)} tokens", _of_context(result, name)),
        Fact("Fell back to text", share_text(one.number("fallback_share")), needs),
    )
    return tuple(fact for fact in facts if not fact.value.startswith(DASH))


def _of_context(result: Fields, name: str) -> str:
    fewer = result.yes("break_even", name, "at_most")
    return "of context, or fewer" if fewer else "of context"
