"""`kvbaton ticket`: who may take a baton, from when, until when, and how often."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.cli.conftest import Cli, Exported
from tests.cli.test_reference import names, shape

from kvbaton.cli import places
from kvbaton.errors import NotTrusted, TrustFault
from kvbaton.seals.tickets import Ticket, check_ticket


def check(said: Any, *, audience: str = "coder", after_s: int = 0) -> Ticket:
    """The ticket as the receiver reads it, so many seconds from now."""
    return check_ticket(
        said["ticket"],
        baton=said["baton"],
        sender="planner",
        audience=audience,
        domain="local",
        now_ms=time.time_ns() // 1_000_000 + 1000 * after_s,
        trust=places.trust_domain().trust,
    )


def test_a_ticket_lets_one_receiver_take_one_baton(cli: Cli, exported: Exported) -> None:
    """Signed for the baton's sender; one use, one hour, unless said otherwise."""
    words = ("ticket", exported.baton, "--for", "coder", "--store", exported.store)
    said = cli(*words, "--json").json
    assert names(said) == shape("ticket")
    made = check(said)
    assert (made.issuer, made.audience, made.uses) == ("planner", "coder", 1)
    assert made.expires_ms - made.not_before_ms == 3_600_000
    with pytest.raises(NotTrusted) as caught:
        check(said, audience="critic")
    assert caught.value.fault is TrustFault.TICKET_AUDIENCE
    printed = cli(*words).out
    assert printed.count("\n") == 1
    assert check(said | {"ticket": printed.strip()}).nonce != made.nonce


def test_times_and_uses(cli: Cli, exported: Exported) -> None:
    """A ticket may begin later, live longer, and be used often."""
    said = cli(
        "ticket", exported.baton, "--for", "coder", "--store", exported.store, "--json",
        "--uses", 0, "--not-before", "10m", "--expires", "2d",
    ).json  # fmt: skip
    assert said["uses"] == 0
    assert said["expires_ms"] - said["not_before_ms"] == 2 * 86_400_000 - 600_000
    for after_s, fault in ((0, TrustFault.NOT_YET), (2 * 86_400, TrustFault.TICKET_EXPIRED)):
        with pytest.raises(NotTrusted) as caught:
            check(said, after_s=after_s)
        assert caught.value.fault is fault
    assert check(said, after_s=601).baton == exported.baton


@pytest.mark.parametrize(
    ("option", "value"),
    [("--expires", "soon"), ("--expires", "1.5h"), ("--not-before", "-5m"), ("--expires", "0s")],
)
def test_times_that_make_no_sense(cli: Cli, exported: Exported, option: str, value: str) -> None:
    """The option is named; a ticket that expires at once is none."""
    words = ("ticket", exported.baton, "--for", "coder", "--store", exported.store, "--json")
    result = cli(*words, option, value)
    assert (result.code, result.json["error"]["code"]) == (3, "input-error")


def test_a_baton_that_is_not_there(cli: Cli, exported: Exported) -> None:
    """There is no ticket for what nobody can take."""
    result = cli("ticket", "0" * 64, "--for", "coder", "--store", exported.store, "--json")
    assert (result.code, result.json["error"]["code"]) == (7, "baton-unavailable")
