"""`kvbaton export` and `kvbaton take`: numbers, outcomes, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCUMENT, Cli, Exported, Result

from kvbaton import api
from kvbaton.cli.export_command import PHASES as EXPORT_PHASES
from kvbaton.cli.take_command import PHASES as TAKE_PHASES

DTYPE = ("--dtype", "float32")


def test_export_says_exactly_what_the_issue_promises(exported: Exported) -> None:
    """The JSON of `export` has six fields, and four phases with their seconds."""
    said = exported.said
    assert list(said) == ["baton", "store", "tokens", "segments", "bytes_written", "seconds"]
    assert tuple(said["seconds"]) == EXPORT_PHASES == ("export", "encode", "seal", "sign", "put")
    assert said["segments"] == 2
    written = sum(p.stat().st_size for p in exported.files("segments"))
    assert said["bytes_written"] == written


def test_export_prints_the_id_and_nothing_else(cli: Cli, tiny: Path, document: Path) -> None:
    """Standard output is the id, so that a shell can keep it in a variable."""
    store = document.with_name("store")
    done = cli("export", "--model", tiny, "--context", document, "--store", store, *DTYPE)
    assert done.code == 0
    assert len(done.out) == 65
    assert (store / "batons" / done.out[:2] / done.out.strip()).is_file()
    assert "tokens in 2 segments" in done.err


def test_a_context_that_is_not_answered_is_wholly_computed(
    cli: Cli, tiny: Path, document: Path
) -> None:
    """Without new tokens nothing is pending, and the receiver computes its own tokens only."""
    place = ("--store", document.with_name("store"))
    arguments = ("--model", tiny, "--context", document, *place, *DTYPE, "--json")
    said = cli("export", *arguments).json
    shown = cli("inspect", said["baton"], *place, "--json").json
    assert (shown["cached_tokens"], shown["pending_tokens"]) == (said["tokens"], 0)
    taken = cli(
        "take", "--model", tiny, "--baton", said["baton"], *place, *DTYPE, "--json",
        "--instruction", "Go on", "--max-new-tokens", "3",
    ).json["receipt"]  # fmt: skip
    assert taken["reused_tokens"] == said["tokens"]
    assert taken["computed_tokens"] == taken["context_tokens"] - said["tokens"]


def take(cli: Cli, tiny: Path, exported: Exported, *more: object) -> Result:
    """What a take of the baton gives."""
    return cli(
        "take", "--model", tiny, "--baton", exported.baton, "--store", exported.store, *DTYPE,
        "--max-new-tokens", "4", *more,
    )  # fmt: skip


def test_a_take_computes_pending_and_new_tokens_only(
    cli: Cli, tiny: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`computed_tokens` is what a hook behind the last layer saw before the first token."""
    engine = api.load(str(tiny), dtype="float32")
    fed: list[int] = []
    hook = engine.model.model.norm.register_forward_pre_hook(
        lambda module, arguments: fed.append(arguments[0].shape[1])
    )
    try:
        said = take(cli, tiny, exported, "--instruction", "Go on", "--json").json
    finally:
        hook.remove()
    receipt = said["receipt"]
    new = receipt["context_tokens"] - exported.said["tokens"]
    assert receipt["route"] == "baton"
    assert receipt["pending_tokens"] == 1
    assert receipt["computed_tokens"] == fed[0] == 1 + new
    assert fed[1:] == [1] * (receipt["generated_tokens"] - 1)
    assert receipt["reused_tokens"] == exported.said["tokens"] - 1


def test_take_says_exactly_what_the_issue_promises(
    cli: Cli, tiny: Path, exported: Exported
) -> None:
    """The JSON of `take` has the output and the receipt, which has every phase."""
    said = take(cli, tiny, exported, "--instruction", "Go on", "--json").json
    assert list(said) == ["output", "receipt"]
    assert set(TAKE_PHASES) <= set(said["receipt"]["seconds"])
    assert set(TAKE_PHASES) == {
        "get", "verify", "decode", "probe", "align", "attach", "first_forward", "ttft",
    }  # fmt: skip


def test_take_prints_the_answer_apart_from_the_receipt(
    cli: Cli, tiny: Path, exported: Exported
) -> None:
    """The answer is on standard output, the receipt on standard error."""
    answer = take(cli, tiny, exported, "--instruction", "Go on", "--json").json["output"]
    shown = take(cli, tiny, exported, "--instruction", "Go on")
    assert (shown.code, shown.out) == (0, answer + "\n")
    assert "baton (used, mode continue)" in shown.err


def test_the_sender_s_instruction_is_taken_where_the_receiver_has_none(
    cli: Cli, tiny: Path, exported: Exported
) -> None:
    """A baton that says what is to be done needs no instruction."""
    own = take(cli, tiny, exported, "--json").json
    given = take(cli, tiny, exported, "--instruction", "Name the door.", "--json").json
    assert own["output"] == given["output"]
    assert own["receipt"]["context_tokens"] == given["receipt"]["context_tokens"]


def test_a_receiver_that_adds_nothing_is_refused(cli: Cli, tiny: Path, document: Path) -> None:
    """Neither an instruction nor one in the baton: exit 3, `empty-input`."""
    place = ("--store", document.with_name("store"))
    made = cli("export", "--model", tiny, "--context", document, *place, *DTYPE).out.strip()
    done = cli("take", "--model", tiny, "--baton", made, *place, *DTYPE, "--json")
    assert (done.code, done.json["error"]["code"]) == (3, "empty-input")


def test_a_second_export_of_the_same_context_writes_no_segment(
    cli: Cli, tiny: Path, document: Path, exported: Exported
) -> None:
    """What the store holds is neither computed nor written again."""
    again = cli(
        "export", "--model", tiny, "--context", document, "--store", exported.store, *DTYPE,
        "--max-new-tokens", "5", "--json",
    ).json  # fmt: skip
    assert again["bytes_written"] == 0
    assert again["tokens"] == exported.said["tokens"]


def test_strict_fails_where_the_cache_cannot_be_used(
    cli: Cli, tiny: Path, exported: Exported
) -> None:
    """Another dtype is another function: route text, or exit 5 with `--strict`."""
    arguments = (
        "take", "--model", tiny, "--baton", exported.baton, "--store", exported.store,
        "--dtype", "float64", "--instruction", "Go on", "--max-new-tokens", "2", "--json",
    )  # fmt: skip
    fallback = cli(*arguments)
    assert (fallback.code, fallback.json["receipt"]["route"]) == (0, "text")
    assert fallback.json["receipt"]["reasons"][0]["code"] == "function-differs"
    refused = cli(*arguments, "--strict")
    assert refused.code == 5
    assert refused.json["error"]["code"] == "baton-refused"
    assert refused.json["error"]["reason"] == "function-differs"


def test_messages_are_answered_where_the_store_is_missing(
    cli: Cli, tiny: Path, tmp_path: Path
) -> None:
    """A store that is not there is an unavailable baton: the caller's messages, or exit 7."""
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Hello"}]), encoding="utf-8")
    absent = tmp_path / "absent"
    arguments = (
        "take", "--model", tiny, "--baton", "0" * 64, "--store", absent, *DTYPE, "--json",
        "--max-new-tokens", "2",
    )  # fmt: skip
    answered = cli(*arguments, "--messages", messages)
    assert answered.code == 0
    receipt = answered.json["receipt"]
    assert (receipt["outcome"], receipt["route"]) == ("unavailable", "text")
    assert receipt["reasons"][0]["code"] == "store-error"
    refused = cli(*arguments, "--instruction", "Go on")
    assert (refused.code, refused.json["error"]["code"]) == (7, "baton-unavailable")
    assert not absent.exists()


def test_messages_alone_reuse_what_they_have_in_common(
    cli: Cli, tiny: Path, exported: Exported, tmp_path: Path
) -> None:
    """Without an instruction the messages are the prompt; their common prefix is reused."""
    messages = [
        {"role": "user", "content": DOCUMENT},
        {"role": "assistant", "content": "Nothing like it."},
        {"role": "user", "content": "Go on"},
    ]
    done = take(cli, tiny, exported, "--messages", write(tmp_path, messages), "--json")
    receipt = done.json["receipt"]
    assert (receipt["route"], receipt["reasons"][0]["code"]) == ("partial", "tokens-diverge")
    assert receipt["first_divergence"] == receipt["reused_tokens"]


def write(folder: Path, messages: Any) -> Path:
    """A file with chat messages."""
    path = folder / "messages.json"
    path.write_text(json.dumps(messages), encoding="utf-8")
    return path


def test_agents_share_a_prefix_across_processes(cli: Cli, tiny: Path, document: Path) -> None:
    """In shared-prefix mode the receiver begins with the same context, behind it its own role."""
    place = ("--store", document.with_name("store"))
    made = cli(
        "export", "--model", tiny, "--context", document, *place, *DTYPE, "--mode",
        "shared-prefix", "--json",
    ).json  # fmt: skip
    taken = cli(
        "take", "--model", tiny, "--baton", made["baton"], *place, *DTYPE, "--context", document,
        "--system", "You", "--instruction", "Go on", "--max-new-tokens", "2", "--json",
    ).json["receipt"]  # fmt: skip
    assert (taken["mode"], taken["route"]) == ("shared-prefix", "baton")
    assert taken["reused_tokens"] == made["tokens"]


def export(cli: Cli, tiny: Path, document: Path, *more: object) -> Result:
    """Export a document into the store beside it."""
    place = ("--store", document.with_name("store"))
    return cli("export", "--model", tiny, "--context", document, *place, *DTYPE, "--json", *more)


def test_slices_are_joined_in_the_order_in_which_they_are_given(
    cli: Cli, tiny: Path, document: Path
) -> None:
    """Two unanswered contexts, without their system prompt, behind the receiver's own."""
    batons = []
    for words in ("You plan the doors.", "You code the doors."):
        document.write_text(words * 3, encoding="utf-8")
        done = export(
            cli, tiny, document, "--mode", "slice", "--spans", "prompt", "--system", "Hello there"
        )
        batons.append(done.json["baton"])
    place = ("--store", document.with_name("store"), "--json")
    given = [part for one in batons for part in ("--baton", one)]
    done = cli(
        "take", "--model", tiny, *given, *place, *DTYPE, "--instruction", "Go on",
        "--max-new-tokens", "2", "--repair", "0",
    )  # fmt: skip
    receipt = done.json["receipt"]
    assert (receipt["mode"], receipt["route"]) == ("slice", "baton")
    assert receipt["batons"] == batons
    assert receipt["fidelity"]["class"] == "approximate"
    assert receipt["recomputed_token_layers"] == 0


def test_a_clean_slice_is_for_slices(cli: Cli, tiny: Path, document: Path) -> None:
    """``--clean`` says what it is for."""
    done = export(cli, tiny, document, "--clean")
    assert (done.code, done.json["error"]["code"]) == (3, "input-error")


def test_a_profile_that_was_not_measured_names_the_command(
    cli: Cli, tiny: Path, document: Path
) -> None:
    """Exit 3, before anything is computed, with what to run."""
    done = export(cli, tiny, document, "--profile", "layered")
    assert (done.code, done.json["error"]["code"]) == (3, "not-calibrated")
    assert "kvbaton tune-codec" in done.json["error"]["hint"]


def test_a_measured_profile_is_used_by_both_sides(
    cli: Cli, tiny: Path, document: Path, measured: Any
) -> None:
    """Fewer bytes, fidelity and record in the receipt, route baton."""
    record = measured("compact")
    exact = export(cli, tiny, document)
    done = export(cli, tiny, document, "--profile", "compact", "--system", "Hello there")
    assert done.json["bytes_written"] < exact.json["bytes_written"]
    place = ("--store", document.with_name("store"), "--json")
    taken = cli(
        "take", "--model", tiny, "--baton", done.json["baton"], *place, *DTYPE,
        "--instruction", "Go on", "--max-new-tokens", "2",
    )  # fmt: skip
    receipt = taken.json["receipt"]
    assert receipt["route"] == "baton"
    assert receipt["fidelity"] == {
        "class": "lossy", "codec": "compact", "calibration": record.digest
    }  # fmt: skip


def test_what_stays_in_a_small_window_can_be_chosen(cli: Cli, tiny: Path, document: Path) -> None:
    """The receipt names the strategy; the answer has the room that it was promised."""
    document.write_text("Every door has a key. " * 20, encoding="utf-8")
    done = export(cli, tiny, document, "--importance")
    place = ("--store", document.with_name("store"), "--json")
    taken = cli(
        "take", "--model", tiny, "--baton", done.json["baton"], *place, *DTYPE,
        "--instruction", "Go on", "--max-new-tokens", "200", "--overflow", "importance",
    )  # fmt: skip
    receipt = taken.json["receipt"]
    assert receipt["reasons"][0]["code"] == "window-fitted"
    assert receipt["route"] == "baton"
    assert receipt["context_tokens"] + 200 <= 512


def test_a_context_longer_than_the_window_is_refused(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """600 bytes are more than 512 tokens: exit 3, and no baton."""
    path = tmp_path / "long.txt"
    path.write_text("x" * 600, encoding="utf-8")
    place = ("--store", tmp_path / "store")
    done = cli("export", "--model", tiny, "--context", path, *place, *DTYPE, "--json")
    assert (done.code, done.json["error"]["code"]) == (3, "window-exceeded")
    assert cli("list", *place, "--json").json["batons"] == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_deadline_is_a_positive_number(
    cli: Cli, tiny: Path, exported: Exported, seconds: str
) -> None:
    """A deadline that could not be kept, or never ends, is an error."""
    done = take(cli, tiny, exported, "--instruction", "Go on", "--deadline-s", seconds)
    assert done.code == 3
    assert "deadline" in done.err


def test_receipts_are_kept_where_the_settings_say(
    cli: Cli, tiny: Path, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer appends one line of JSON, without any text of the prompt."""
    log = tmp_path / "receipts.jsonl"
    monkeypatch.setenv("KVBATON_RECEIPTS", str(log))
    ids = [
        take(cli, tiny, exported, "--instruction", "Name it", "--json").json["receipt"]["id"]
        for _ in range(2)
    ]
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids
    assert "Name it" not in log.read_text(encoding="utf-8")
    assert log.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("KVBATON_RECEIPTS", str(tmp_path / "absent" / "receipts.jsonl"))
    assert take(cli, tiny, exported, "--instruction", "Name it").code == 3
