"""`kvbaton audit plan`, `run`, `report`: from the command line to a page, on a real tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli

from kvbaton.cli import audit_command

SMALL = ("--repeats", 2, "--fixed-tokens", 2, "--ladder", "16,32", "--dtype", "float32")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Four tasks in the short form."""
    lines = [
        {
            "context": f"Room {n} holds the key of door {n + 7}. The cat sleeps in room {n + 3}.",
            "questions": [
                {"question": f"Which door has the key of room {n}?", "answer": str(n + 7)},
                {"question": "Where does the cat sleep?", "answer": f"room {n + 3}"},
            ],
        }
        for n in (10, 20, 30, 40)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def numbers(value: Any) -> list[float]:
    """Every number inside a value."""
    if isinstance(value, dict):
        return [n for inner in value.values() for n in numbers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in numbers(inner)]
    return [value] if isinstance(value, int | float) else []


def test_a_run_ends_in_a_result_and_a_page(
    cli: Cli, tiny: Path, tasks: Path, tmp_path: Path
) -> None:
    """The object that is promised, all numbers finite, and the files that it names."""
    out = tmp_path / "run"
    run = cli("audit", "run", "--model", tiny, "--tasks", tasks, "--units", 4, *SMALL,
              "--treatments", "T1,T2,T3,T4,T5,S:prompt,Z", "--out", out, "--json")  # fmt: skip
    assert run.code == 0, run.err
    said = run.json
    assert (said["seed"], said["units"]) == (1, 4)
    assert set(said["treatments"]) >= {"T1", "T2", "T3", "T4", "T5", "S:prompt", "Z"}
    wanted = {"ttft_ratio", "ttft_ratio_ci", "accuracy", "accuracy_t0", "kl", "flips", "verdict"}
    assert wanted <= set(said["treatments"]["T3"])
    assert isinstance(said["strata"], list) and "break_even_tokens" in said
    assert all(math.isfinite(n) for n in numbers(said))
    page = Path(said["files"]["html"]).read_text(encoding="utf-8")
    assert "<h1" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert {f.name for f in out.iterdir()} >= {"report.html", "result.json", "trials.csv"}
    # the same command does nothing again, and reports the same
    before = (out / "trials.jsonl").read_bytes()
    again = cli("audit", "run", "--model", tiny, "--tasks", tasks, "--units", 4, *SMALL,
                "--treatments", "T1,T2,T3,T4,T5,S:prompt,Z", "--out", out, "--json")  # fmt: skip
    assert again.json == said and (out / "trials.jsonl").read_bytes() == before
    # people get a sentence, a table, and the page's place
    shown = cli("audit", "report", out)
    assert shown.code == 0 and str(out / "report.html") in shown.out
    assert "T3" in shown.out and "nan" not in shown.out.lower()


def test_break_even_lengths_are_kept_for_the_policy(
    cli: Cli, tiny: Path, tasks: Path, tmp_path: Path, home: Path, remembered: Any
) -> None:
    """By function, under the data folder."""
    from kvbaton.policy.profit import stored_break_even

    done = cli("audit", "run", "--model", tiny, "--tasks", tasks, "--units", 1, *SMALL,
        "--treatments", "T3", "--out", tmp_path / "run", "--json")  # fmt: skip
    assert done.code == 0, done.out + done.err
    function = remembered(str(tiny), dtype="float32").function.digest
    kept = stored_break_even(function, home / "data")
    assert kept is not None and kept.find("T3") is not None
    assert [point.tokens for point in kept.routes[0].points] == [16, 32]


def test_a_profile_must_have_been_measured(
    cli: Cli, tiny: Path, tasks: Path, tmp_path: Path, measured: Any
) -> None:
    """Like everywhere: not measured is refused with the command that measures, then it runs."""
    arguments = ("audit", "run", "--model", tiny, "--tasks", tasks, "--units", 1, *SMALL,
                 "--treatments", "T3:cheapest", "--out", tmp_path / "run", "--json")  # fmt: skip
    refused = cli(*arguments)
    assert refused.code == 3 and "tune-codec" in refused.json["error"]["hint"]
    measured("cheapest")
    ran = cli(*arguments)
    assert ran.code == 0, ran.err
    assert ran.json["treatments"]["T3:cheapest"]["routes"] == {"baton": 3}


def test_a_plan_is_said_before_it_is_run(cli: Cli, tiny: Path, tasks: Path, tmp_path: Path) -> None:
    """Treatments with their bookkeeping, and the power; the file runs."""
    path = tmp_path / "plan.json"
    said = cli("audit", "plan", "--model", tiny, "--tasks", tasks, "--units", 3, *SMALL,
               "--treatments", "T3", "--write", path, "--json").json  # fmt: skip
    assert [t["name"] for t in said["treatments"]] == ["T0", "T3"]
    assert said["power"]["units"] == 3 and said["units_needed"] > 3 and said["warning"]
    shown = cli("audit", "plan", "--tasks", tasks, "--units", 3, "--treatments", "T3")
    assert "a cache stands for" in shown.out and "units are needed" in shown.out
    ran = cli("audit", "run", "--plan", path, "--out", tmp_path / "run", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["units"] == 3 and "units are needed" in ran.err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--treatments", "T9"), "no treatment is called"),
        (("--treatments", "T0"), "no treatment besides text"),
        (("--tasks", "nowhere"), "no task set is called"),
        (("--lengths", "many"), "--lengths takes whole numbers"),
        (("--margin", "0"), "margin_points"),
        (("--plan", "/nowhere/plan.json"), "the plan cannot be read"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], wanted: str
) -> None:
    """One sentence, no trace, nothing written."""
    done = cli("audit", "run", "--model", "no-such-model", *arguments, "--out", tmp_path / "x")
    assert done.code == 3 and wanted in done.err and "Traceback" not in done.err
    assert not (tmp_path / "x").exists()


def test_a_bad_task_line_is_named(cli: Cli, tiny: Path, tasks: Path, tmp_path: Path) -> None:
    """Line and field."""
    with tasks.open("a", encoding="utf-8") as file:
        file.write('{"context": "x", "questions": [{"question": 7, "answer": "y"}]}\n')
    done = cli("audit", "run", "--model", tiny, "--tasks", tasks, "--units", 1, "--json")
    at = done.json["error"]["at"]
    assert done.code == 3 and ":5 " in at and "question" in at


def test_a_report_needs_a_run(cli: Cli, tmp_path: Path) -> None:
    """A folder without one is refused."""
    done = cli("audit", "report", tmp_path, "--json")
    assert done.code == 3 and str(tmp_path) in done.json["error"]["at"]


def test_missing_libraries_are_named_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work, not after it."""
    import importlib.util

    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name == "statsmodels" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    done = cli("audit", "run", "--json")
    assert done.code == 3 and done.json["error"]["hint"] == "pip install 'kvbaton[audit]'"


def test_the_shapes_name_what_is_printed() -> None:
    """The reference has all four commands."""
    assert set(audit_command.SHAPES) == {"plan", "run", "report", "observe"}
