"""Several runs: which belong together, and what they add up to."""

from dataclasses import replace

import pytest
from tests.audit.sample_records import Effect, Sample, run_of

from kvbaton.audit.analysis import analyse
from kvbaton.audit.analysis.runs import Run, joined_rule
from kvbaton.errors import InputError
from kvbaton.types import JSON

SMALL = Sample(units=6, repeats=2, ladder=False, effects={"T0": Effect(), "T3": Effect(0.12)})


def planned(pair: str = "other/F32", tasks: JSON | None = None, **fields: object) -> Run:
    """A run whose plan, and task set, differ from the small sample's in these fields."""
    run = run_of(replace(SMALL, pair=pair))
    header = run.header | {"tasks": run.header["tasks"] | (tasks or {})}
    return replace(run, plan=run.plan | fields, header=header)


def test_no_run_is_refused() -> None:
    """There is nothing to analyse."""
    with pytest.raises(InputError, match="no run"):
        analyse([])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (planned(margin_points=1.0), "margin_points (5 against 1)"),
        (planned(alpha=0.01), "alpha (0.05 against 0.01)"),
        (planned(icc=0.5), "icc (0.3 against 0.5)"),
        (planned(repeats=9), "repeats (2 against 9)"),
        (planned(fixed_tokens=9), "fixed_tokens (8 against 9)"),
        (planned(treatments=("T0", "T1")), "treatments (T0, T3 against T0, T1)"),
        (planned(units=9), "units (6 against 9)"),
        (planned(tasks={"name": "code"}), "task set (private-facts against code)"),
        (planned(tasks={"version": 2}), "version of the task set (1 against 2)"),
        (planned(tasks={"digest": "1" * 64}, seed=8), "seed (7 against 8)"),
        (planned(tasks={"digest": "1" * 64}, questions=3), "questions (5 against 3)"),
        (planned(tasks={"digest": "1" * 64}, lengths=(300,)), "lengths ( against 300)"),
    ],
)
def test_runs_that_differ_in_what_they_share_are_refused(other: Run, named: str) -> None:
    """The sentence names what differs."""
    with pytest.raises(InputError) as caught:
        joined_rule([run_of(SMALL), other])
    assert named in str(caught.value)


def test_files_of_tasks_are_the_same_if_their_bytes_are() -> None:
    """A set of the user's own has the digest of its file, whatever its path and the seed."""
    mine = replace(planned("a/F32", seed=1), plan=planned().plan | {"tasks": "mine.jsonl"})
    moved = replace(planned("b/F32"), plan=planned().plan | {"tasks": "x/mine.jsonl", "seed": 2})
    assert joined_rule([mine, moved]) == mine.rule
    other = replace(moved, header=planned("b/F32", {"digest": "1" * 64}).header)
    with pytest.raises(InputError, match=r"digest of the task set \(0{12} against 1{12}\)"):
        joined_rule([mine, other])


def test_two_runs_of_a_pair_are_refused() -> None:
    """They would count every unit twice, even where they are runs of two seeds."""
    for again in (run_of(SMALL), planned(SMALL.pair, seed=8)):
        with pytest.raises(InputError, match=f"same pair and tasks: {SMALL.pair}"):
            analyse([run_of(SMALL), again])


def test_units_of_a_built_in_set_are_the_same_on_all_models() -> None:
    """A model's own tokenizer gives the file other bytes, and the units stay those of the seed."""
    other = planned(tasks={"digest": "1" * 64})
    found = analyse([run_of(SMALL), other])
    assert found["units"] == found["treatments"]["T3"]["units"] == 6


def test_sessions_of_a_run_add_up() -> None:
    """The time is that of all sessions; what is beside the work is a share of all the work."""
    run = run_of(SMALL)
    kept = [record for record in run.records if record["kind"] != "session"]
    sessions = [
        {"kind": "session", "repeat": n, "wall_s": wall_s, "work_s": work_s}
        for n, (wall_s, work_s) in enumerate([(10.0, 8.0), (3.0, 2.0), (0.5, 0.0)])
    ]
    found = analyse([replace(run, records=[*kept, *sessions])])
    assert found["wall_s"] == pytest.approx(13.5)
    assert found["overhead_share"] == pytest.approx(3.5 / 10)
    without = analyse([replace(run, records=kept)])
    assert (without["wall_s"], without["overhead_share"]) == (None, None)


def test_pairs_are_strata_of_where_it_pays() -> None:
    """One pair is the whole; of several each has its lengths and winners."""
    ladder = replace(SMALL, ladder=True)
    alone = analyse([run_of(ladder)])["profit"]
    both = analyse([run_of(ladder), run_of(replace(ladder, pair="other/F32", seed=7))])["profit"]
    assert {row["stratum"] for row in alone["winners"]} == {""}
    winners = {(row["stratum"], row["tokens"]): row["winner"] for row in both["winners"]}
    for pair in ("other/F32", SMALL.pair):
        assert winners[pair, 32] == "text"
        assert winners[pair, 1024] == "T3"
