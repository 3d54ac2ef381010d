"""Nothing of an untrusted baton is seen: by tokenizer, model, cache, filters, logs, receipt,
events or errors, whether or not there are messages to answer instead."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attacks.names import said_by
from attacks.scene import DOMAIN, MESSAGES, Scene
from tests.attacks.untrusted import ATTEMPTS, Attempt
from tests.attacks.witness import (
    PROBES,
    Witness,
    canary,
    marked,
    receiver,
    texts_of,
    watched_engine,
    watching,
)

from kvbaton.errors import KvbatonError
from kvbaton.types import Outcome


@pytest.fixture(scope="module")
def watched() -> tuple[Any, list[Witness]]:
    """An engine whose every part is watched, and who is told."""
    told = [Witness()]
    made = watched_engine(told)
    _ = made.function, made.producer  # looked at once: they ask the tokenizer, too
    return made, told


def take(scene: Scene, watched: Any, attempt: Attempt, **options: Any) -> tuple[Witness, str]:
    """Take a baton before a witness; what the witness saw, and the outcome."""
    engine, told = watched
    witness = Witness()
    told.append(witness)
    agent = receiver(scene, engine, witness, attempt.store)
    with watching(witness):
        try:
            turn = agent.take(
                attempt.baton, "Go on", max_new_tokens=2, **attempt.options, **options
            )
        except KvbatonError as error:
            witness.note("errors", *texts_of(error))
            return witness, error.code
    witness.note("receipt", turn.text)
    return witness, turn.receipt.outcome.value


@pytest.mark.parametrize("messages", [None, MESSAGES], ids=["alone", "with messages"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_nothing_of_an_untrusted_baton_is_seen(
    name: str, messages: Any, watched: Any, tmp_path: Path
) -> None:
    """The baton is refused, and no probe has seen a word, an id or a number of it."""
    scene = Scene(tmp_path)
    attempt = ATTEMPTS[name](scene)
    witness, outcome = take(scene, watched, attempt, messages=messages)
    assert outcome != Outcome.USED.value
    assert witness.tainted() == {}
    if messages is None and outcome in ("not-trusted", "baton-unavailable"):
        assert not witness.seen["tokenizer"] and not witness.seen["model"]
        assert not witness.seen["filters"] and not witness.seen["receipt"]


def test_the_probes_see_a_baton_that_is_trusted(watched: Any, tmp_path: Path) -> None:
    """The control: the same words, ids and numbers, in a baton that may be used."""
    scene = Scene(tmp_path)
    witness, outcome = take(scene, watched, Attempt(canary(scene).id))
    assert outcome == Outcome.USED.value
    assert {"tokenizer", "model", "cache", "filters"} <= witness.tainted().keys()
    assert any("zqxprompt" in one for one in witness.seen["filters"])
    assert any("zqxinstruction" in one for one in witness.seen["filters"])


def test_receipt_and_errors_name_what_differs_of_a_trusted_baton(
    watched: Any, tmp_path: Path
) -> None:
    """The control of the other probes: what a trusted baton says of its function is told."""
    scene = Scene(tmp_path)
    odd = marked(canary(scene).manifest)
    odd = replace(odd, function=replace(odd.function, digest="0f" * 32))
    attempt = Attempt(scene.forge(odd, scene.ring.signer(odd.sender, DOMAIN)))
    witness, outcome = take(scene, watched, attempt)
    assert outcome == Outcome.KV_UNUSABLE.value
    assert "receipt" in witness.tainted()
    witness, outcome = take(scene, watched, attempt, strict=True)
    assert (outcome, "errors" in witness.tainted()) == ("baton-refused", True)


def test_logs_events_and_hidden_errors_are_seen() -> None:
    """The control of the rest: a log, a warning, both streams, an event, an error behind one."""
    for say in (
        lambda: logging.getLogger("kvbaton.anything").debug("zqx"),
        lambda: logging.getLogger("transformers.anything").info("zqx"),
        lambda: warnings.warn("zqx", stacklevel=1),
        lambda: sys.stderr.write("zqx"),
        lambda: print("zqx"),
    ):
        witness = Witness()
        with watching(witness):
            say()
        assert set(witness.tainted()) == {"logs"}
    witness = Witness()
    witness.note("events", "layer-attached", {"run": ["zqx"]})
    try:
        try:
            raise ValueError("zqx")
        except ValueError:
            raise KvbatonError("quiet") from None
    except KvbatonError as error:
        witness.note("errors", *texts_of(error))
    assert set(witness.tainted()) == {"events", "errors"}
    assert set(PROBES) > set(witness.tainted())


@pytest.mark.parametrize(
    "name",
    ["A1 an unknown key", "A7 another agent's key", "A7 no manifest: an unknown field"],
)
def test_commands_show_nothing_of_it(name: str, tmp_path: Path) -> None:
    """``inspect``, ``list`` and ``verify`` say that it is not trusted, and not a word of it."""
    from attacks.scene import SECRET

    from kvbaton.seals.private_files import make_folder, write_once

    make_folder(tmp_path / "domains")
    write_once(tmp_path / "domains" / f"{DOMAIN}.key", SECRET)
    attempt = ATTEMPTS[name](Scene(tmp_path))
    for command in (("inspect", attempt.baton, "--text"), ("verify", attempt.baton, "--json")):
        said = said_by(tmp_path, *command)
        assert said.strip() and "Traceback" not in said
        assert "zqx" not in said
