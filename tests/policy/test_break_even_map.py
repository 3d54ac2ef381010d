"""The break-even map: winners follow from predictions, and the picture says them in words."""

from __future__ import annotations

import dataclasses
import json
import math
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from tests.policy.speed_examples import KNOWN, STORE, speeds

from kvbaton.errors import InputError
from kvbaton.policy.break_even_map import break_even_map
from kvbaton.policy.costs import cache_phases, take_ahead, text_s
from kvbaton.policy.map_svg import map_svg
from kvbaton.policy.speeds import Speeds, StoreSpeed

SVG = "{http://www.w3.org/2000/svg}"


def test_winners_are_the_fastest_routes() -> None:
    """Long contexts go by cache over fast lines, and by text over slow ones."""
    drawn = break_even_map(KNOWN, tokens=(1000,), bandwidths_mb_s=(0.01, 1000.0), new_tokens=10)
    slow, fast = drawn.row(1000)
    assert (slow.winner, fast.winner) == ("text", "exact")
    assert drawn.routes == ("text", "exact", "compact")
    for cell in (slow, fast):
        assert cell.ttft_s[0] == pytest.approx(text_s(KNOWN, 1010))


def test_a_small_profile_wins_where_bytes_are_dear() -> None:
    """A quarter of the bytes, for a little decoding."""
    drawn = break_even_map(KNOWN, tokens=(1000,), bandwidths_mb_s=(1.0,), new_tokens=10)
    assert drawn.cells[0].winner == "compact"


def test_at_break_even_cache_and_text_take_as_long() -> None:
    """To the last digits, by the cost model itself."""
    drawn = break_even_map(KNOWN, tokens=(512, 1000), new_tokens=10)
    for one in drawn.even:
        assert one.bandwidth_mb_s is not None
        speed = 1e6 * one.bandwidth_mb_s
        take = take_ahead(KNOWN, one.route, one.tokens, one.tokens + 10)
        phases = cache_phases(KNOWN, take, StoreSpeed(0.0, 0.0, speed, speed))
        assert phases is not None
        assert phases.get_s + phases.host_s == pytest.approx(text_s(KNOWN, one.tokens + 10))


def test_a_route_may_never_be_worth_it() -> None:
    """Where opening a store takes longer than reading the text."""
    remote = StoreSpeed(10.0, 0.0, 1e12, 1e12)
    drawn = break_even_map(KNOWN, tokens=(64,), store=remote)
    assert {cell.winner for cell in drawn.cells} == {"text"}
    assert [one.bandwidth_mb_s for one in drawn.even] == [None, None]


@given(speeds)
def test_the_map_is_whole_and_steady(known: Speeds) -> None:
    """Any speeds give a cell for each place, and more bandwidth never brings text back."""
    drawn = break_even_map(known, store=known.stores[STORE])
    assert len(drawn.cells) == len(drawn.tokens) * len(drawn.bandwidths_mb_s)
    assert json.loads(json.dumps(drawn.to_json(), allow_nan=False)) == drawn.to_json()
    for tokens in drawn.tokens:
        by_cache = [cell.winner != "text" for cell in drawn.row(tokens)]
        assert by_cache == sorted(by_cache)


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": ()},
        {"tokens": (0,)},
        {"bandwidths_mb_s": (0.0,)},
        {"bandwidths_mb_s": (math.nan,)},
        {"bandwidths_mb_s": (math.inf,)},
        {"new_tokens": 0},
        {"tokens": range(1, 20_000)},
    ],
)
def test_maps_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    """Lengths and bandwidths are positive, and not too many."""
    with pytest.raises(InputError):
        break_even_map(KNOWN, **bad)


def test_the_picture_names_every_winner_in_words() -> None:
    """Each cell has a title with all times, and the name of what wins is written in it."""
    drawn = break_even_map(KNOWN)
    text = map_svg(drawn)
    root = ET.fromstring(text)
    groups = root.findall(f"{SVG}g")
    assert len(groups) == len(drawn.cells)
    written = Counter(group.findtext(f"{SVG}text") for group in groups)
    assert written == Counter(cell.winner for cell in drawn.cells)
    titles = " ".join(group.findtext(f"{SVG}title", "") for group in groups)
    assert "1024 tokens at 100 MB/s" in titles
    assert root.findtext(f"{SVG}title") == "Fastest route to the first token: tiny"
    assert map_svg(drawn) == text


def test_hostile_names_stay_text() -> None:
    """A model's name cannot leave its element."""
    evil = '</title><script>alert("x")</script>\x00\u202e'
    codecs = {"exact": KNOWN.codecs["exact"], evil: KNOWN.codecs["compact"]}
    named = dataclasses.replace(KNOWN, model=evil, codecs=codecs)
    root = ET.fromstring(map_svg(break_even_map(named)))
    assert not list(root.iter(f"{SVG}script"))
    assert "script" in root.findtext(f"{SVG}title", "")


def test_lengths_beyond_what_was_measured_are_marked() -> None:
    """With a star, which is explained."""
    near = map_svg(break_even_map(KNOWN, tokens=(64, 512)))
    far = map_svg(break_even_map(KNOWN, tokens=(64, 4096)))
    assert "*" not in near
    assert "4,096*" in far
    assert "longer than what was measured" in far
