"""Running: blocks in a random order, every trial once, on from where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.conftest import audit_in, equipment_of, plan_of, tasks_of, unit_of

from kvbaton.audit.analysis.lengths import ladders
from kvbaton.audit.journal import TRIALS, Journal, key_of, read_trials
from kvbaton.audit.launch import break_even_record, tasks_for
from kvbaton.audit.runner import Audit
from kvbaton.audit.tasks.files import write_task_set
from kvbaton.audit.tasks.schema import Question, TaskSet
from kvbaton.errors import FormatError, InputError

NAMES = ("T0", "T1", "T2", "T3", "T4", "T5")


def kinds(records: Any) -> Counter[str]:
    """How many records of each kind."""
    return Counter(record["kind"] for record in records)


@pytest.fixture(scope="module")
def finished(audited_engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of two units and two repeats."""
    folder = tmp_path_factory.mktemp("run")
    audit_in(folder, audited_engine, plan_of(repeats=2)).run()
    return folder


def test_every_unit_gets_every_treatment(finished: Path) -> None:
    """Once for quality, once per repeat timed; a noise floor per unit; lengths; profiles."""
    header, records = read_trials(finished / TRIALS)
    assert kinds(records) == {
        "unit": 2, "floor": 2, "quality": 12, "timed": 24, "ladder": 2, "profile": 6, "session": 1,
    }  # fmt: skip
    timed = [r for r in records if r["kind"] == "timed"]
    blocks = Counter((r["unit"], r["repeat"], r["treatment"]) for r in timed)
    assert set(blocks.values()) == {1} and len(blocks) == 2 * 2 * 6
    assert set(header["treatments"]) == set(NAMES)
    assert header["treatments"]["T1"]["cache"] == "prompt"


def test_the_order_is_random_by_block_and_fixed_by_the_seed(
    audited_engine: Any, tmp_path: Path
) -> None:
    """Positions are 0 to 5 in every block; two blocks differ; the same seed gives the same."""

    def orders(folder: Path, seed: int) -> list[list[str]]:
        plan = plan_of(units=4, repeats=2, seed=seed)
        audit = audit_in(folder, audited_engine, plan)
        found = []
        for unit in audit.units:
            timed = [one for one in audit._open_trials(unit) if one.kind == "timed"]
            found += [[one.name for one in timed if one.repeat == r] for r in range(2)]
        return found

    first = orders(tmp_path / "a", 1)
    assert all(sorted(order) == sorted(NAMES) for order in first)
    assert len({tuple(order) for order in first}) > 4
    assert orders(tmp_path / "b", 1) == first != orders(tmp_path / "c", 2)


def test_positions_say_the_order(finished: Path) -> None:
    """What ran when within its block can be told from the records."""
    _, records = read_trials(finished / TRIALS)
    for unit in ("u0", "u1"):
        for repeat in (0, 1):
            block = [
                r["position"]
                for r in records
                if r["kind"] == "timed" and (r["unit"], r["repeat"]) == (unit, repeat)
            ]
            assert block == list(range(6))


def test_a_finished_run_is_not_run_again(
    finished: Path, audited_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed and nothing is written."""
    before = (finished / TRIALS).read_bytes()
    audit = audit_in(finished, audited_engine, plan_of(repeats=2))
    monkeypatch.setattr(audit, "_case", lambda *_: pytest.fail("it computes"))
    audit.run()
    assert (finished / TRIALS).read_bytes() == before


@pytest.mark.parametrize("kept", [1, 2, 5, 9, 16, 30, 41])
def test_an_interrupted_run_goes_on_where_it_was(
    finished: Path, audited_engine: Any, tmp_path: Path, kept: int
) -> None:
    """What is there stays as it is, nothing is done twice, and nothing is left out."""
    whole = (finished / TRIALS).read_text().splitlines(keepends=True)
    (tmp_path / "plan.json").write_text((finished / "plan.json").read_text())
    (tmp_path / TRIALS).write_text("".join(whole[:kept]) + whole[kept][:20])  # cut off by a crash
    audit_in(tmp_path, audited_engine, plan_of(repeats=2)).run()
    again = (tmp_path / TRIALS).read_text().splitlines(keepends=True)
    assert again[:kept] == whole[:kept]
    found, wanted = (
        {key_of(json.loads(line)) for line in lines[1:] if '"session"' not in line}
        for lines in (again, whole)
    )
    assert found == wanted
    for line in map(json.loads, again[1:]):
        if line["kind"] == "timed":  # places are those of the whole order
            assert line["position"] == next(
                one["position"] for one in map(json.loads, whole[1:]) if key_of(one) == key_of(line)
            )
    assert len({key_of(json.loads(line)) for line in again}) == len(again)


def test_a_resumed_block_has_the_message_that_was_said(
    finished: Path, audited_engine: Any, tmp_path: Path
) -> None:
    """The ids of later trials are those of earlier ones, whatever the model would say now."""
    whole = (finished / TRIALS).read_text().splitlines(keepends=True)
    unit = json.loads(whole[1])
    assert unit["kind"] == "unit"
    said = [*unit["message_ids"][:-1], 40, 41, unit["message_ids"][-1]]
    (tmp_path / "plan.json").write_text((finished / "plan.json").read_text())
    (tmp_path / TRIALS).write_text(whole[0] + json.dumps(unit | {"message_ids": said}) + "\n")
    audit_in(tmp_path, audited_engine, plan_of(repeats=2)).run()
    _, records = read_trials(tmp_path / TRIALS)
    timed = [r for r in records if r["kind"] == "timed" and r["unit"] == "u0"]
    asked = len(audited_engine.chat.handoff_turn(None, "x")) > 0
    contexts = {r["receipt"]["context_tokens"] for r in timed if r["repeat"] == 0}
    _, old = read_trials(finished / TRIALS)
    before = {
        r["receipt"]["context_tokens"]
        for r in old
        if r["kind"] == "timed" and r["unit"] == "u0" and r["repeat"] == 0
    }
    assert asked and contexts == {tokens + 2 for tokens in before}


def test_a_killed_run_is_resumed_by_another_process(tmp_path: Path, audited_engine: Any) -> None:
    """SIGKILL in the middle: the records hold whole trials, and the rest is done later."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.audit.conftest import audit_in\n"
        "from tests.engines import families\n"
        "import torch; torch.set_num_threads(1)\n"
        "engine = families.tiny('smollm'); engine.max_tokens = 4096\n"
        "count = [0]\n"
        "def told(label):\n"
        "    count[0] += 1\n"
        "    if count[0] == 9: os.kill(os.getpid(), signal.SIGKILL)\n"
        "audit_in(Path(sys.argv[1]), engine, told=told).run()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    _, before = read_trials(tmp_path / TRIALS)
    assert 0 < len(before) < 20
    audit_in(tmp_path, audited_engine).run()
    _, after = read_trials(tmp_path / TRIALS)
    assert after[: len(before)] == before
    assert kinds(after)["timed"] == kinds(after)["quality"] == 12


def test_two_runs_of_one_folder_exclude_each_other(tmp_path: Path) -> None:
    """The second is told so."""
    first, second = Journal(tmp_path, plan_of()), Journal(tmp_path, plan_of())
    with first.alone(), pytest.raises(InputError, match="already running"), second.alone():
        pass


def test_a_folder_belongs_to_one_plan(finished: Path, audited_engine: Any) -> None:
    """Another plan, or another model, is refused; the records stay."""
    with pytest.raises(InputError, match="another plan"):
        Journal(finished, plan_of(repeats=2, seed=9))
    journal = Journal(finished, plan_of(repeats=2))
    audit = audit_in(finished, audited_engine, plan_of(repeats=2))
    for change, match in (
        ({"function": "0" * 64}, "another model"),
        ({"tasks": {"digest": "1" * 64}}, "other tasks"),
        ({"environment": audit.header()["environment"] | {"threads": 77}}, "number of threads"),
        ({"environment": audit.header()["environment"] | {"cores": 77}}, "another machine"),
    ):
        with pytest.raises(InputError, match=match):
            journal.begin(audit.header() | change)


@pytest.mark.parametrize(
    ("line", "match"),
    [("{", "not JSON"), ("[1]", "no JSON object"), (None, "recorded twice")],
)
def test_damaged_records_are_refused_with_their_line(
    finished: Path, tmp_path: Path, line: str | None, match: str
) -> None:
    """What was added by hand is not analysed as if it were measured."""
    lines = (finished / TRIALS).read_text().splitlines()
    path = tmp_path / TRIALS
    path.write_text("\n".join([*lines, line if line is not None else lines[3]]) + "\n")
    with pytest.raises(FormatError, match=match) as caught:
        read_trials(path)
    assert caught.value.at == f"{path}:{len(lines) + 1}"


def test_what_is_impossible_is_reported_and_the_rest_is_run(
    windowed_engine: Any, tmp_path: Path
) -> None:
    """A slice of a model with window layers is no trial; it is not dropped silently either."""
    plan = plan_of(units=1, treatments=("T3", "S:prompt"))
    audit_in(tmp_path, windowed_engine, plan).run()
    _, records = read_trials(tmp_path / TRIALS)
    failed = {(r["treatment"], r["what"]) for r in records if r["kind"] == "failed"}
    assert failed == {
        ("S:prompt", "hand-off"), ("S0:prompt", "hand-off"), ("T0", "floor"),
        ("T0", "quality"), ("T3", "quality"),
    }  # fmt: skip
    assert all(r["sentence"] and r["code"] for r in records if r["kind"] == "failed")
    timed = {r["treatment"] for r in records if r["kind"] == "timed"}
    assert timed == {"T0", "T3"}  # window layers: timed, but not asked


def test_a_failing_scorer_ends_no_more_than_its_own_trials(
    audited_engine: Any, tmp_path: Path
) -> None:
    """The failure is a record with its question; what is timed is timed, and a mended scorer is
    asked again."""
    asked = (Question("q7", "Go on.", ("x",), scorer="tests.audit.test_trials:broken"),)
    units = (unit_of(0, questions=asked), unit_of(1))
    plan = plan_of(treatments=("T3",))
    tasks = TaskSet("mine", 1, units, digest="0" * 64)
    Audit(plan, tasks, equipment_of(audited_engine), Journal(tmp_path, plan)).run()
    _, records = read_trials(tmp_path / TRIALS)
    failed = [r for r in records if r["kind"] == "failed"]
    assert {(r["unit"], r["treatment"]) for r in failed} == {("u0", "T0"), ("u0", "T3")}
    assert all("q7" in r["sentence"] for r in failed)
    assert {r["unit"] for r in records if r["kind"] == "quality"} == {"u1"}
    assert {r["unit"] for r in records if r["kind"] == "timed"} == {"u0", "u1"}
    whole = [replace(q, scorer="contains") for q in asked]
    mended = TaskSet("mine", 1, (replace(units[0], questions=tuple(whole)), unit_of(1)), "0" * 64)
    Audit(plan, mended, equipment_of(audited_engine), Journal(tmp_path, plan)).run()
    _, records = read_trials(tmp_path / TRIALS)
    assert kinds(records)["failed"] == 0 and kinds(records)["quality"] == 4


def test_a_unit_that_cannot_be_read_stops_no_other(audited_engine: Any, tmp_path: Path) -> None:
    """One that is longer than the model's window: each of its treatments is recorded as failed."""
    long = {"role": "user", "content": "x" * 5000}
    plan = plan_of(treatments=("T3",), units=3)
    units = (unit_of(0), unit_of(1, messages=(long,)), unit_of(2))
    tasks = TaskSet("mine", 1, units, digest="0" * 64)
    Audit(plan, tasks, equipment_of(audited_engine), Journal(tmp_path, plan)).run()
    _, records = read_trials(tmp_path / TRIALS)
    failed = [(r["unit"], r["treatment"], r["what"]) for r in records if r["kind"] == "failed"]
    assert failed == [("u1", "T0", "sender"), ("u1", "T3", "sender")]
    assert {r["unit"] for r in records if r["kind"] == "quality"} == {"u0", "u2"}


def test_a_wrong_cache_needs_another_conversation(audited_engine: Any, tmp_path: Path) -> None:
    """Where all units share one document a control would hold the right numbers: impossible."""
    plan = plan_of(treatments=("T3", "T4", "T5"))
    units = (unit_of(0), replace(unit_of(0), id="u1"))
    tasks = TaskSet("mine", 1, units, digest="0" * 64)
    Audit(plan, tasks, equipment_of(audited_engine), Journal(tmp_path, plan)).run()
    _, records = read_trials(tmp_path / TRIALS)
    failed = {(r["treatment"], r["what"]) for r in records if r["kind"] == "failed"}
    assert failed == {("T4", "hand-off")}
    assert {r["treatment"] for r in records if r["kind"] == "quality"} == {"T0", "T3", "T5"}


def test_excerpts_are_opted_into(audited_engine: Any, tmp_path: Path) -> None:
    """Fifty characters of what the sender read, or nothing."""
    for folder, wanted in (("off", False), ("on", True)):
        plan = plan_of(units=1, excerpts=wanted, treatments=("T3",), ladder=())
        audit_in(tmp_path / folder, audited_engine, plan).run()
        _, records = read_trials(tmp_path / folder / TRIALS)
        (unit,) = [r for r in records if r["kind"] == "unit"]
        full = unit_of(0).messages[-1]["content"]
        assert unit["excerpt"] == (full[:50] if wanted else "")


def test_records_can_be_read_by_their_owner_only(finished: Path) -> None:
    """They hold answers."""
    assert (finished / TRIALS).stat().st_mode & 0o077 == 0


def test_progress_says_what_is_left(audited_engine: Any, tmp_path: Path) -> None:
    """Every trial is announced with the time left, down to none."""
    told: list[str] = []
    plan = plan_of(units=1, treatments=("T3",), ladder=())
    audit_in(tmp_path, audited_engine, plan, told=told.append).run()
    steps = [line for line in told if line.endswith(" left")]
    assert len(steps) == 1 + 2 + 2 + 2  # floor, quality, timed, profile
    assert steps[-1].endswith("about 0 s left")


# --- tasks and lengths ---------------------------------------------------------------------------


def test_a_task_file_must_have_the_units(tmp_path: Path, audited_engine: Any) -> None:
    """The error says how many there are."""
    path = tmp_path / "mine.jsonl"
    write_task_set(tasks_of(3), path)
    tokenizer = audited_engine.tokenizer
    made = tasks_for(plan_of(tasks=str(path), units=3), tokenizer, made_for="tiny")
    assert [unit.id for unit in made.units] == ["u0", "u1", "u2"]
    with pytest.raises(InputError, match="has 3 units") as caught:
        tasks_for(plan_of(tasks=str(path), units=4), tokenizer, made_for="tiny")
    assert caught.value.hint == "--units 3"
    with pytest.raises(InputError, match="no task set"):
        tasks_for(plan_of(tasks="nowhere"), tokenizer, made_for="tiny")


def test_break_even_is_kept_as_the_policy_reads_it(finished: Path) -> None:
    """One route per cache, with the lengths that were timed."""
    header, records = read_trials(finished / TRIALS)
    record = break_even_record(header, records)
    assert record is not None and [r.route for r in record.routes] == ["T3"]
    assert [p.tokens for p in record.routes[0].points] == [8]
    assert record.function == header["function"]
    assert break_even_record(header, []) is None


def test_lengths_without_text_are_left_out() -> None:
    """A ratio needs both ways."""

    def timed(name: str, tokens: int) -> dict[str, Any]:
        return {"kind": "ladder", "treatment": name, "tokens": tokens, "ttft_s": 1.0}

    found = ladders([timed("T0", 8), timed("T3", 8), timed("T3", 16)])
    assert [point.tokens for point in found["T3"]] == [8]
    assert ladders([timed("T3", 8)]) == {}
