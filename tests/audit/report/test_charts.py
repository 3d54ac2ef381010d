"""Charts of an audit's report."""

import re
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from tests.audit.report.results import sample_result

from kvbaton.audit.report.charts.canvas import Chart, legend_shape, log_ticks, style
from kvbaton.audit.report.charts.content import content_chart
from kvbaton.audit.report.charts.cost import bytes_chart, gains_chart
from kvbaton.audit.report.charts.forest import Estimate, quality_forest, speed_forest
from kvbaton.audit.report.charts.latency import latency_chart, quantile, sample_of
from kvbaton.audit.report.charts.lengths import lengths_chart, profit_map
from kvbaton.audit.report.reading import Fields
from kvbaton.errors import InputError

ESTIMATES = (Estimate("T1", -1.0, (-3.0, 1.0)), Estimate("T3", 0.0, None))
RATIOS = (Estimate("T1", 0.5, (0.4, 0.6)), Estimate("T3", 0.125, (0.1, 0.15)))
CHARTS: dict[str, Callable[[Fields], Chart | None]] = {
    "content": content_chart,
    "quality-forest": lambda result: quality_forest(ESTIMATES, 5.0),
    "speed-forest": lambda result: speed_forest(RATIOS, RATIOS[:1]),
    "latency": latency_chart,
    "break-even": lengths_chart,
    "bytes": bytes_chart,
    "gains": gains_chart,
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_the_same_each_time_and_takes_its_colours_from_the_page(name: str) -> None:
    """The same result gives the same bytes: well-formed, dateless, every colour a variable."""
    first, second = (CHARTS[name](Fields(sample_result())) for _ in range(2))
    assert first is not None
    assert first == second
    assert first.name == name
    tree = ElementTree.fromstring(first.svg)
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(str(one).startswith(f"{name}-") for one in ids)
    assert set(re.findall(r"(?:fill|stroke): (?!url)([^;\"]+)", first.svg)) <= {"none"} | {
        f"var(--{color})"
        for color in ("ink", "soft", "grid", "paper", "band", *(f"s{i}" for i in range(8)))
    }
    assert "metadata" not in first.svg
    assert first.table.rows
    assert not re.search(r"#[0-9a-f]{6}\b", first.svg)


def test_letters_stay_letters() -> None:
    """Names in a chart are text that can be read and searched, not outlines."""
    chart = quality_forest((Estimate("$T_3$ <&>", 1.0, None),), 5.0)
    assert chart is not None
    assert "$T_3$ &lt;&amp;&gt;</text>" in chart.svg


def test_names_in_any_script_draw_without_warning() -> None:
    """Letters that matplotlib's own font lacks are left to the reader's fonts."""
    chart = quality_forest((Estimate("\u738b\u82b3", 1.0, None),), 5.0)
    assert chart is not None
    assert "\u738b\u82b3</text>" in chart.svg


def test_the_first_series_are_told_apart_without_colour() -> None:
    """No two of the first 40 looks share both colour and marker, no two of eight the marker."""
    looks = [style(i) for i in range(40)]
    assert len({(look.color, look.marker) for look in looks}) == 40
    assert len({look.marker for look in looks[:8]}) == 8


def test_a_legend_has_room_for_its_names() -> None:
    """Names that half of the width cannot hold stand one to a row."""
    assert legend_shape(["T1", "T2", "T3"]) == (2, pytest.approx(0.44))
    assert legend_shape(["T3", "T3:near-lossless"])[0] == 2
    assert legend_shape(["T1", "S:generated+repair", "T3"]) == (1, pytest.approx(0.66))


def test_a_large_loss_leaves_the_margin_visible() -> None:
    """Beside a loss of 90 points the ends of the margin are still labelled."""
    chart = quality_forest((*ESTIMATES, Estimate("S:all", -90.0, (-95.0, -80.0))), 5.0)
    assert chart is not None
    labels = re.findall(r">([^<>]+)</text>", chart.svg)
    assert {"\u22125", "0", "5", "\u221250"} <= set(labels)


def test_the_profit_map_says_where_it_pays() -> None:
    """A place pays or costs by its whole interval; an interval around 1 is open."""
    points = [
        {"tokens": 64, "ratio": 1.5, "ci": [1.2, 1.9]},
        {"tokens": 128, "ratio": 1.0, "ci": [0.9, 1.1]},
        {"tokens": 256, "ratio": 0.5, "ci": [0.4, 0.6]},
        {"tokens": 512, "ratio": 0.3, "ci": None},
    ]
    even = {"tokens": 130, "ci": [100, 180], "points": points}
    other = {"tokens": None, "points": points[:1], "why": "never faster"}
    found = profit_map(Fields({"break_even": {"T3": even, "T1": other}}))
    assert found is not None
    rows = [[cell.text for cell in row] for row in found.rows]
    assert rows[0] == [
        "T3", "130 [100, 180]", "costs 1.50", "open 1.00", "pays 0.500", "open 0.300",
    ]  # fmt: skip
    assert rows[1] == ["T1", "\u2013", "costs 1.50", "\u2013", "\u2013", "\u2013"]
    assert found.reasons == ("never faster", "not measured at this length")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.09, 1.2, [0.1, 0.2, 0.5, 1]),
        (0.5, 20, [0.5, 1, 2, 5, 10, 20]),
        (0.001, 100, [0.001, 0.01, 0.1, 1, 10, 100]),
    ],
)
def test_logarithmic_axes_have_round_ticks(low: float, high: float, expected: list[float]) -> None:
    """Ticks are 1, 2 and 5, or powers of ten where those would crowd."""
    assert log_ticks(low, high) == pytest.approx(expected)


def test_quantiles_lie_between_neighbours() -> None:
    """A quarter of 1 to 5 is 2, and a half of two numbers is their middle."""
    assert quantile([1, 2, 3, 4, 5], 0.25) == 2
    assert quantile([1, 2], 0.5) == 1.5
    assert quantile([7], 0.9) == 7


def test_trials_give_the_seconds_that_a_result_lacks() -> None:
    """Timed trials fill in the samples; samples of the result itself stay."""
    trials = [
        {"kind": "timed", "treatment": "T3", "ttft_s": 0.5},
        {"kind": "timed", "treatment": "T3", "ttft_s": None},
        {"kind": "ladder", "treatment": "T3", "ttft_s": 9.0},
    ]
    assert sample_of({}, trials).fields("samples", "T3").numbers() == [0.5]
    own = sample_of({"samples": {"T3": [0.25]}}, trials)
    assert own.fields("samples", "T3").numbers() == [0.25]


def test_without_matplotlib_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing plotting library is an error of ours with the extra's name."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="needs matplotlib") as caught:
        quality_forest(ESTIMATES, 5.0)
    assert caught.value.hint == "pip install 'kvbaton[audit]'"
