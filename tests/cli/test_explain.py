"""`kvbaton explain`: receipts from a file, a log or standard input, and batons nobody has taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCUMENT, Cli, Exported
from tests.cli.test_reference import names, shape

from kvbaton.policy.explanation import PredictedRoute
from kvbaton.policy.gates import GATES, gate_name

NAMES = [gate_name(gate) for gate in GATES]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of receipts that the settings name."""
    path = tmp_path / "receipts.jsonl"
    monkeypatch.setenv("KVBATON_RECEIPTS", str(path))
    return path


def take(cli: Cli, tiny: Path, exported: Exported, *more: object) -> Any:
    """A take of the baton; what it printed."""
    return cli(
        "take", "--model", tiny, "--baton", exported.baton, "--store", exported.store,
        "--dtype", "float32", "--instruction", "Go on", "--max-new-tokens", "3", "--json", *more,
    ).json  # fmt: skip


def marks(said: Any) -> dict[str, str]:
    """The gates' marks."""
    return {line["name"]: line["mark"] for line in said["gates"]}


def test_a_baton_route_is_explained_by_its_id(
    cli: Cli, tiny: Path, exported: Exported, log: Path
) -> None:
    """The receipt is found in the log by the first digits of its id; every gate has its tick."""
    receipt = take(cli, tiny, exported)["receipt"]
    said = cli("explain", receipt["id"][:8], "--json").json
    assert (said["of"], said["id"], said["route"]) == ("receipt", receipt["id"], "baton")
    assert (said["policy"], said["chosen"], said["decided_by"]) == ("measured", "exact", "")
    assert marks(said) == dict.fromkeys(NAMES, "✓")
    assert said["whole"] is True
    assert cli("explain", receipt["id"], "--json", "--receipts", log).json == said
    predicted = set(PredictedRoute.__dataclass_fields__) | {"came_true"}
    assert names(said) | predicted == shape("explain") - {"receipt", "baton"}


def test_a_text_route_is_explained_for_people(
    cli: Cli, tiny: Path, exported: Exported, log: Path
) -> None:
    """The gate that refused has its cross and decided; what nobody asked has no tick."""
    for segment in exported.files("segments"):
        segment.unlink()
    receipt = take(cli, tiny, exported)["receipt"]
    shown = cli("explain", receipt["id"], "--receipts", log)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0] == f"receipt {receipt['id']}: route text, kv-unusable"
    assert any("✗ segment-missing" in line and line.endswith("<- decided") for line in lines)
    assert "decided by: segment-missing" in lines


def test_a_partial_route_is_explained(
    cli: Cli, tiny: Path, exported: Exported, tmp_path: Path, log: Path
) -> None:
    """The caller's own messages have a beginning in common: that gate let it pass by less."""
    messages = [{"role": "user", "content": DOCUMENT[:200] + "What opens door 21?"}]
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(messages), encoding="utf-8")
    printed = cli(
        "take", "--model", tiny, "--baton", exported.baton, "--store", exported.store,
        "--dtype", "float32", "--messages", path, "--max-new-tokens", "3", "--json",
    ).json  # fmt: skip
    said = cli("explain", printed["receipt"]["id"], "--json", "--receipts", log).json
    assert (said["route"], said["chosen"]) == ("partial", "exact")
    assert said["decided_by"] == "divergence"
    assert marks(said) == {name: "~" if name == "divergence" else "✓" for name in NAMES}


def test_what_take_prints_can_be_piped(cli: Cli, tiny: Path, exported: Exported) -> None:
    """Standard input is the object of `take --json`, or the receipt alone."""
    printed = take(cli, tiny, exported)
    whole = cli("explain", "-", "--json", stdin=json.dumps(printed).encode()).json
    alone = cli("explain", "-", "--json", stdin=json.dumps(printed["receipt"]).encode()).json
    assert whole == alone
    assert whole["id"] == printed["receipt"]["id"]


def test_the_rules_of_the_settings_are_in_the_receipt(
    cli: Cli, tiny: Path, exported: Exported, home: Path, log: Path
) -> None:
    """A policy file in the data folder holds for a take, and its gate decided."""
    policy = home / "data" / "policy.toml"
    policy.write_text("[rules]\nmin_tokens = 100000\n", encoding="utf-8")
    try:
        receipt = take(cli, tiny, exported)["receipt"]
        said = cli("explain", receipt["id"], "--json").json
        untaken = cli("explain", exported.baton, "--store", exported.store, "--json").json
    finally:
        policy.unlink()
    assert (said["route"], said["decided_by"]) == ("text", "minimum-length")
    assert marks(said)["minimum-length"] == "✗"
    assert (untaken["of"], untaken["decided_by"]) == ("baton", "minimum-length")


def test_a_baton_is_explained_without_a_model(cli: Cli, exported: Exported) -> None:
    """Gates that need a receiver say what they need; nothing is loaded."""
    said = cli("explain", exported.baton.upper(), "--store", exported.store, "--json").json
    assert (said["of"], said["id"], said["route"]) == ("baton", exported.baton, "baton")
    assert marks(said)["has-kv"] == "✓"
    assert marks(said)["compatibility"] == "·"
    shown = cli("explain", exported.baton, "--store", exported.store).out
    assert "· memory          needs the receiver's model and its free memory" in shown


def test_missing_segments_of_a_baton_are_said(cli: Cli, exported: Exported) -> None:
    """How many; the receiver would read the text."""
    exported.files("segments")[0].unlink()
    said = cli("explain", exported.baton, "--store", exported.store, "--json").json
    assert (said["route"], said["decided_by"]) == ("text", "segment-missing")
    assert said["afterwards"][0]["sentence"] == "1 of 2 segments are not in the store"


def test_the_receivers_own_rules_are_asked(cli: Cli, exported: Exported, tmp_path: Path) -> None:
    """With a policy file and the receiver's name."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[agents.coder.rules]\nroutes = []\n", encoding="utf-8")
    rest = ("--store", exported.store, "--policy", policy, "--json")
    assert cli("explain", exported.baton, "--agent", "coder", *rest).json["route"] == "text"
    assert cli("explain", exported.baton, "--agent", "writer", *rest).json["route"] == "baton"
    policy.write_text("[rules]\nmin_token = 1\n", encoding="utf-8")
    failed = cli("explain", exported.baton, *rest)
    assert (failed.code, failed.json["error"]["at"]) == (3, "$.rules.min_token")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no/such/file.json", "is no file, and no id"),
        ("abc", "is no file, and no id"),
        ("x" * 5000, "receipts are not logged here"),
        ("0123456789", "receipts are not logged here"),
        ("a\0b", "is no file, and no id"),
    ],
)
def test_what_is_nothing_is_refused(cli: Cli, what: str, said: str) -> None:
    """With a sentence and what would do."""
    failed = cli("explain", what, "--json")
    assert failed.code == 3
    assert said in failed.json["error"]["sentence"]
    assert failed.json["error"]["hint"]


@pytest.mark.parametrize(
    ("text", "said", "at"),
    [
        ("[1]", "the receipt is no JSON object", "-"),
        ("{", "the receipt is not JSON", "-"),
        ('{"a": NaN}', "the receipt is not JSON: NaN is not JSON", "-"),
        ("[" * 100_000, "the receipt is not JSON", "-"),
        ('{"id": "r1"}', "must be a string", "$.route"),
    ],
)
def test_what_is_no_receipt_is_refused(cli: Cli, text: str, said: str, at: str) -> None:
    """Each with its place."""
    failed = cli("explain", "-", "--json", stdin=text.encode())
    assert failed.code == 3
    assert failed.json["error"]["sentence"].startswith(said)
    assert failed.json["error"]["at"] == at


def test_a_damaged_log_is_read_as_far_as_it_goes(cli: Cli, log: Path) -> None:
    """Lines that are none are counted in a warning, however long; the others are found."""
    receipt = {"id": "c" * 32, "route": "text", "outcome": "no-baton", "baton": None}
    good = json.dumps(receipt)
    log.write_text(
        "\n".join(["", "nonsense", '{"id": 7}', good, "x" * 3_000_000, '{"id": NaN}', good]),
        encoding="utf-8",
    )
    shown = cli("explain", "cccccccc")
    assert shown.code == 0
    assert "4 lines of receipts.jsonl are no receipts" in shown.err
    assert shown.out.startswith(f"receipt {'c' * 32}: route text")


def test_an_id_of_several_receipts_is_refused(cli: Cli, log: Path) -> None:
    """More of it is asked for; one that nobody has is said to be in no line."""
    log.write_text(
        "".join(json.dumps({"id": f"dddddddd{n}", "route": "text"}) + "\n" for n in range(2)),
        encoding="utf-8",
    )
    failed = cli("explain", "dddddddd", "--json")
    assert "several receipts begin with" in failed.json["error"]["sentence"]
    failed = cli("explain", "eeeeeeee", "--json")
    assert failed.json["error"]["sentence"].startswith("no receipt in receipts.jsonl")
    assert cli("explain", "dddddddd", "--receipts", log.parent, "--json").code == 3
