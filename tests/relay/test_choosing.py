"""``profile="auto"``: how a hand-off is encoded, or that text goes in its place, as predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.policy.speed_examples import KNOWN
from tests.relay.test_lossy import RECORD, known, plan_of

from kvbaton.agent import Agent
from kvbaton.choosing import Choosing
from kvbaton.codecs import CodecPlan, uniform
from kvbaton.deciding import PolicySource
from kvbaton.errors import NotCalibrated
from kvbaton.forecasts import Forecasts
from kvbaton.policy.hosts import host_id
from kvbaton.policy.policy_files import parse_policy
from kvbaton.policy.speed_files import Kept, store_speeds
from kvbaton.policy.speeds import Knot, Line, Speeds, StoreSpeed, store_name
from kvbaton.stores import open_store
from kvbaton.types import Route

LONG = "Hello there, you plan and code. " * 8
FREE = Line(0.0, 0.0)
SLOW_TEXT = (Knot(10, 10.0), Knot(1000, 1000.0))
FAST_TEXT = (Knot(10, 1e-6), Knot(1000, 1e-4))


def speeds_for(function: str, url: str, *, bytes_per_s: float, fast_text: bool = False) -> Speeds:
    """Nothing costs anything but reading the store, and text, which may be free, too."""
    codecs = {
        "exact": replace(KNOWN.codecs["exact"], encode=FREE, decode=FREE, token_bytes=1000.0),
        "eight": replace(
            KNOWN.codecs["compact"], encode=FREE, decode=Line(1e-3, 0.0), token_bytes=250.0
        ),
    }
    return replace(
        KNOWN,
        function=function,
        host=host_id(),
        prefill=FAST_TEXT if fast_text else SLOW_TEXT,
        codecs=codecs,
        stores={store_name(url): StoreSpeed(0.0, 0.0, bytes_per_s, bytes_per_s)},
    )


@pytest.fixture
def choosing_agent(agent_of: Any, engine: Any, tmp_path: Path) -> Callable[..., Agent]:
    """Makes agents that choose, over a store that is as fast as the test says."""
    url = f"dir://{tmp_path}/store"

    def plan(name: str) -> CodecPlan | None:
        if name == "exact":
            return None
        if name != "eight":
            raise NotCalibrated(f"{name} was not measured")
        layers = len(engine.layout.layers)
        return uniform("eight", *plan_of(8).layers[0], layers).calibrated(RECORD)

    def make(name: str, *, policy: Any = None, **options: Any) -> Agent:
        data_dir = tmp_path / name
        if "bytes_per_s" in options:
            found = speeds_for(
                engine.function.digest,
                url,
                bytes_per_s=options.pop("bytes_per_s"),
                fast_text=options.pop("fast_text", False),
            )
            store_speeds(Kept(found), data_dir)
        made: Agent = agent_of(name, store=open_store(url), calibrations=known, **options)
        made.choosing = Choosing(name, made.relay, plan)
        made.relay.deciding.forecasts = Forecasts(data_dir, engine.function.digest)
        made.relay.deciding.source = PolicySource(parse_policy(policy or {}))
        return made

    return make


@pytest.mark.parametrize(
    ("bytes_per_s", "fast_text", "policy", "codec"),
    [
        (1e12, False, {}, "raw"),  # the store is faster than decoding
        (2e3, False, {}, "eight"),
        (2e3, False, {"rules": {"minimum_fidelity": "exact"}}, "raw"),
        (2e3, False, {"rules": {"routes": ["exact"]}}, "raw"),
        (2e3, False, {"rules": {"max_lossy_hops": 0}}, "raw"),
        (2e3, True, {}, None),
        (2e3, True, {"rules": {"worth_it": False}}, "raw"),
    ],
)
def test_the_fastest_route_that_is_allowed_is_chosen(
    choosing_agent: Any, bytes_per_s: float, fast_text: bool, policy: Any, codec: str | None
) -> None:
    """Lossless, a profile, or text; the receiver takes what came."""
    sender = choosing_agent("sender", bytes_per_s=bytes_per_s, fast_text=fast_text, policy=policy)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=5))
    if codec is None:
        assert baton.manifest.segments == ()
    else:
        assert baton.manifest.fidelity.codec == codec
    turn = choosing_agent("b").take(baton.id, "Go on", max_new_tokens=3)
    assert turn.receipt.route is (Route.TEXT if codec is None else Route.BATON)
    again = sender.run("And more", max_new_tokens=3)  # what was chosen for one holds for one
    assert sender.hand_off(again).manifest.cached_tokens == again.cached or codec is None


def test_nothing_measured_goes_as_it_is(choosing_agent: Any) -> None:
    """Without speeds of this host the cache is handed off losslessly."""
    sender = choosing_agent("sender")
    assert sender.hand_off(sender.run(LONG, max_new_tokens=5)).manifest.fidelity.codec == "raw"


def test_nothing_is_quantized_twice(choosing_agent: Any) -> None:
    """Behind what another codec has changed only that codec or none may go on."""
    first = choosing_agent("first", bytes_per_s=2e3)
    lossy = first.hand_off(first.run(LONG, max_new_tokens=5))
    assert lossy.manifest.fidelity.codec == "eight"
    second = choosing_agent("second", bytes_per_s=2e3)
    onward = second.hand_off(second.take(lossy.id, "Go on", max_new_tokens=5))
    assert onward.manifest.fidelity.codec == "eight"
    assert onward.manifest.hops.lossy == 2


def test_an_answer_is_streamed_where_it_will_go_losslessly(choosing_agent: Any) -> None:
    """Before a sender starts, what is expected of it says whether segments are stored meanwhile."""
    sender = choosing_agent("sender", bytes_per_s=1e12)
    for _ in range(8):
        sender.forget()
        sender.run(LONG, max_new_tokens=40)
    learner = sender.relay.deciding.forecasts.learner
    known_length = learner.lengths.predict(len(LONG), agent="sender", at_most=40) is not None
    assert sender.choosing.expects_exact(100, 40) is known_length
    found = sender.foresee(LONG, max_new_tokens=40)
    assert (found is not None) is known_length
    if found is not None:
        assert found.best == "exact"
        assert {"text", "exact", "eight"} <= {one.route for one in found.predictions}
