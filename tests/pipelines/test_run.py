"""Pipelines on a tiny real model: who reads what, by which route, in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.conftest import DOCUMENT, ForbiddenStore

from kvbaton.context import Context
from kvbaton.deciding import PolicySource
from kvbaton.errors import BatonRefused, EmptyInput, InputError, StoreFull, WindowExceeded
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.pipelines import Pipeline, Surroundings, run_pipeline
from kvbaton.policy.policy_files import parse_policy
from kvbaton.seals import TrustDomain
from kvbaton.stores import Kind, MemoryStore, Store
from kvbaton.types import Mode, ReasonCode, Route
from kvbaton.wire.digests import DomainKeys

FAN_OUT = """
agents = [
  { name = "planner", system = "You plan", task = "{input}", max_new_tokens = 12 },
  { name = "left", task = "Hi left", max_new_tokens = 8 },
  { name = "right", system = "You code", task = "Hi right", max_new_tokens = 8 },
  { name = "writer", task = "Go on: {answers}.", max_new_tokens = 8 },
]
edges = [
  { from = "planner", to = ["left", "right"] },
  { from = "planner", to = "writer", join = ["left", "right"], instruction = "Be brief" },
]
"""
CASCADE = """
agents = [
  { name = "a", task = "{input}", max_new_tokens = 6 },
  { name = "b", task = "Go on", max_new_tokens = 6 },
  { name = "c", task = "Go on there", max_new_tokens = 6 },
]
edges = [{ from = "a", to = "b" }, { from = "b", to = "c" }]
"""
SHARED = """
context = { title = "Rooms", notes = ["Be brief"] }
agents = [
  { name = "planner", system = "You plan", task = "Hello", max_new_tokens = 6 },
  { name = "left", system = "You code", task = "Hi", max_new_tokens = 6 },
  { name = "right", task = "Go", max_new_tokens = 6 },
]
edges = [{ from = "planner", to = ["left", "right"], mode = "shared-prefix" }]
"""
LONGER = DOCUMENT + "Hello there. " * 8
"""More than one full segment."""
PIPELINES = {"fan-out and join": FAN_OUT, "cascade": CASCADE, "shared prefix": SHARED}
Make = Callable[..., Pipeline]
LOCAL = TrustDomain("local", DomainKeys(bytes(range(32))))


def prompts(engine: Any) -> tuple[list[list[int]], Any]:
    """Ids that are fed to the model, one list per forward pass; and the hook to remove."""
    fed: list[list[int]] = []
    hook = engine.model.register_forward_hook(
        lambda module, args, given, out: fed.append(given["input_ids"][0].tolist()),
        with_kwargs=True,
    )
    return fed, hook


@pytest.mark.parametrize("text", PIPELINES.values(), ids=PIPELINES)
def test_all_takers_go_by_baton_and_answer_as_by_text(
    text: str, engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Whatever the shape, takers reuse the sender's cache and give the text route's tokens."""
    result = run_pipeline(pipeline_of(text), engine, store, route="baton", compare=True)
    first, *takers = result.turns
    assert (first.receipt.route, first.takes_baton) == (Route.TEXT, False)
    assert [turn.receipt.route for turn in takers] == [Route.BATON] * len(takers)
    assert all(turn.receipt.reused_tokens > 0 for turn in takers)
    assert [turn.text.ids for turn in result.turns] == [turn.ids for turn in result.turns]
    assert [turn.difference for turn in result.turns] == [None] * len(result.turns)


@pytest.mark.parametrize("text", PIPELINES.values(), ids=PIPELINES)
def test_the_text_route_computes_everything_and_never_asks_the_store(
    text: str, engine: Any, pipeline_of: Make
) -> None:
    """By text each receiver prefills its whole prompt in one pass; the store is not touched."""
    fed, hook = prompts(engine)
    result = run_pipeline(pipeline_of(text), engine, ForbiddenStore(), route="text")
    hook.remove()
    assert [turn.receipt.route for turn in result.turns] == [Route.TEXT] * len(result.turns)
    contexts = [turn.receipt.context_tokens for turn in result.turns]
    assert [turn.receipt.computed_tokens for turn in result.turns] == contexts
    assert [len(ids) for ids in fed if len(ids) > 1] == contexts
    codes = [[reason.code for reason in turn.reasons] for turn in result.turns]
    assert codes == [[], *[[ReasonCode.ASKED_FOR_TEXT]] * (len(codes) - 1)]


@pytest.mark.parametrize("text", PIPELINES.values(), ids=PIPELINES)
def test_both_routes_give_the_same_answers(
    text: str, engine: Any, store: Store, pipeline_of: Make
) -> None:
    """In float32 a whole run by text answers what a whole run by baton answers."""
    by_baton = run_pipeline(pipeline_of(text), engine, store)
    by_text = run_pipeline(pipeline_of(text), engine, store, route="text")
    assert [turn.ids for turn in by_baton.turns] == [turn.ids for turn in by_text.turns]


def test_a_taker_computes_its_own_turn_only(engine: Any, store: Store, pipeline_of: Make) -> None:
    """Reused, pending and new tokens add up to the context, and only the latter are computed."""
    result = run_pipeline(pipeline_of(FAN_OUT), engine, store)
    planner = result.turns[0].receipt
    for turn in result.turns[1:]:
        receipt = turn.receipt
        assert receipt.reused_tokens == planner.context_tokens + planner.generated_tokens - 1
        assert receipt.computed_tokens == receipt.context_tokens - receipt.reused_tokens


def test_workers_read_their_own_questions_and_the_writer_their_answers(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Each prompt is the planner's conversation and one new turn; answers are named in it."""
    fed, hook = prompts(engine)
    result = run_pipeline(pipeline_of(FAN_OUT), engine, store, route="text")
    hook.remove()
    said = [engine.chat.text_of(ids) for ids in fed if len(ids) > 1]
    planner, left, right, writer = said
    assert planner.startswith("<|im_start|>system\nYou plan<|im_end|>\n<|im_start|>user\nRoom 10")
    conversation = planner + engine.chat.text_of(result.turns[0].ids)
    for prompt, task in ((left, "Hi left"), (right, "You code\n\nHi right")):
        assert prompt.startswith(conversation)
        assert prompt.endswith(f"\n<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n")
    answers = [turn.output.strip() for turn in result.turns[1:3]]
    assert f"user\nBe brief\n\nGo on: left: {answers[0]}\nright: {answers[1]}." in writer


def test_answers_without_a_place_of_their_own_come_first(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """An edge that joins answers puts them before the task when no placeholder does."""
    text = FAN_OUT.replace("Go on: {answers}.", "Go on.").replace(', instruction = "Be brief"', "")
    fed, hook = prompts(engine)
    result = run_pipeline(pipeline_of(text), engine, store, route="text")
    hook.remove()
    answers = [turn.output.strip() for turn in result.turns[1:3]]
    prompt = engine.chat.text_of([ids for ids in fed if len(ids) > 1][-1])
    assert f"user\nleft: {answers[0]}\nright: {answers[1]}\n\nGo on.<|im_end|>" in prompt


def test_placeholders_in_a_document_are_plain_text(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """What fills a placeholder is not searched for placeholders."""
    document = "Hello {answers} and {input}"
    fed, hook = prompts(engine)
    run_pipeline(pipeline_of(FAN_OUT, document), engine, store)
    hook.remove()
    assert f"user\n{document}<|im_end|>" in engine.chat.text_of(fed[0])


def test_a_shared_prefix_hands_over_the_preamble_only(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Workers reuse exactly the shared context, each behind its own role."""
    result = run_pipeline(pipeline_of(SHARED), engine, store, route="baton")
    preamble = Context(documents={"Rooms": DOCUMENT}, notes=["Be brief"]).text
    shared = engine.chat.render_shared(preamble, None, [{"role": "user", "content": "x"}])
    assert [turn.receipt.mode for turn in result.turns[1:]] == [Mode.SHARED_PREFIX] * 2
    assert [turn.receipt.reused_tokens for turn in result.turns[1:]] == [shared.shared_tokens] * 2


def test_every_receiver_has_a_baton_of_its_own_over_the_same_segments(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Three receivers: three batons with name and instruction, one copy of the bytes."""
    from kvbaton.relay import Relay

    result = run_pipeline(pipeline_of(FAN_OUT), engine, store, domain=LOCAL)
    batons = [Relay(engine, store, LOCAL).open(turn.receipt.baton) for turn in result.turns[1:]]
    assert [baton.manifest.terms.receiver for baton in batons] == ["left", "right", "writer"]
    assert [baton.manifest.terms.instruction for baton in batons] == ["", "", "Be brief"]
    assert len({baton.manifest.segments for baton in batons}) == 1
    total = sum(ref.size_bytes for ref in batons[0].manifest.segments)
    assert sum(entry.size_bytes for entry in store.list(Kind.SEGMENT)) == total
    assert [turn.bytes_deduplicated for turn in result.turns[1:]] == [0, total, total]
    assert [turn.receipt.bytes_moved for turn in result.turns[1:]] == [total] * 3


def test_a_cascade_moves_on_what_it_took(engine: Any, store: Store, pipeline_of: Make) -> None:
    """The second hop finds the first one's full segment in the store and counts two hops."""
    result = run_pipeline(pipeline_of(CASCADE, LONGER), engine, store, domain=LOCAL)
    _, second, third = result.turns
    assert second.bytes_deduplicated == 0
    assert 0 < third.bytes_deduplicated < third.receipt.bytes_moved
    assert [turn.receipt.hops.exact for turn in (second, third)] == [1, 2]


def test_a_marker_ends_the_turn_and_one_that_never_comes_does_not(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """The turn ends with the token that completes the marker; otherwise at its ordinary end."""
    plain = run_pipeline(pipeline_of(CASCADE), engine, store)
    marker = plain.turns[0].output[1:3]
    for wanted, finish in ((marker, "hand-off"), ("never said", "length")):
        text = CASCADE.replace(
            'to = "b" }', f'to = "b", hand_off_when = {{ marker = {wanted!r} }} }}'
        )
        result = run_pipeline(pipeline_of(text), engine, store, route="baton", compare=True)
        assert result.turns[0].receipt.finish == finish
        assert result.turns[1].receipt.route is Route.BATON
        assert all(turn.difference is None for turn in result.turns)
    text = CASCADE.replace('to = "b" }', 'to = "b", hand_off_when = "tool-call" }')
    result = run_pipeline(pipeline_of(text), engine, store)
    assert result.turns[0].receipt.finish == "length"


def test_a_marker_by_text_hands_off_without_the_store(engine: Any, pipeline_of: Make) -> None:
    """A trigger that fires by route text leaves the store alone, too."""
    plain = run_pipeline(pipeline_of(CASCADE), engine, ForbiddenStore(), route="text")
    marker = plain.turns[0].output[1:3]
    text = CASCADE.replace('to = "b" }', f'to = "b", hand_off_when = {{ marker = {marker!r} }} }}')
    result = run_pipeline(pipeline_of(text), engine, ForbiddenStore(), route="text")
    assert result.turns[0].receipt.finish == "hand-off"


def test_events_come_in_order(engine: Any, store: Store, pipeline_of: Make) -> None:
    """A turn starts, ends, is handed off and compared before the next one starts."""
    heard: list[str] = []

    def hear(event: str, facts: Mapping[str, Any]) -> None:
        if event in ("segment-stored", "layer-attached"):
            return
        turn = facts.get("turn")
        who = turn.agent if turn is not None else facts.get("receiver") or facts.get("agent", "")
        heard.append(f"{event} {who}".strip())

    run_pipeline(pipeline_of(CASCADE), engine, store, compare=True, observer=hear)
    assert [h for h in heard if h != "prefix-miss"] == [
        "turn-started a", "turn-ended a", "baton-stored", "handed-off b", "compared a",
        "turn-started b", "turn-ended b", "baton-stored", "handed-off c", "text-started b",
        "compared b", "turn-started c", "turn-ended c", "text-started c", "compared c",
    ]  # fmt: skip


def test_layers_are_attached_before_the_turn_ends(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """The relay's own events pass through: every layer is attached in each take, in order."""
    layers: list[int] = []
    ends: list[int] = []

    def hear(event: str, facts: Mapping[str, Any]) -> None:
        if event == "layer-attached":
            layers.append(facts["layer"])
        elif event == "turn-ended":
            ends.append(len(layers))

    run_pipeline(pipeline_of(CASCADE), engine, store, observer=hear)
    per_take = len(engine.layout.layers) * 2  # a full segment and the tail
    assert ends[0] == 0
    assert len(layers) == ends[-1] >= per_take
    assert sorted(set(layers)) == list(range(len(engine.layout.layers)))


def test_a_second_run_finds_the_first_ones_prefix(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """The first agent reuses what the store already holds, and is then compared like a taker."""
    for expected in (0, 256):
        result = run_pipeline(
            pipeline_of(CASCADE, LONGER), engine, store, domain=LOCAL, compare=True
        )
        first = result.turns[0]
        assert first.receipt.reused_tokens == expected
        assert first.text.measured is (expected > 0)
        assert first.difference is None


def test_without_a_domain_a_run_leaves_nothing_that_another_could_find(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Each run has a secret of its own unless one is given."""
    for _ in range(2):
        result = run_pipeline(pipeline_of(CASCADE, LONGER), engine, store)
        assert result.turns[0].receipt.reused_tokens == 0


def test_sampling_draws_alike_by_both_routes(engine: Any, store: Store, pipeline_of: Make) -> None:
    """Without a seed one is drawn, and both routes use it."""
    text = CASCADE.replace(
        "max_new_tokens = 6", "max_new_tokens = 6, sampling = {temperature = 1.0}"
    )
    result = run_pipeline(pipeline_of(text), engine, store, compare=True)
    assert [turn.difference for turn in result.turns] == [None] * 3


def test_a_store_that_fails_leaves_the_text_route(engine: Any, pipeline_of: Make) -> None:
    """A hand-off that cannot be stored goes on with ids; the reason names the store."""
    small = MemoryStore(max_bytes=1000)
    result = run_pipeline(pipeline_of(CASCADE), engine, small)
    by_text = run_pipeline(pipeline_of(CASCADE), engine, ForbiddenStore(), route="text")
    assert [turn.ids for turn in result.turns] == [turn.ids for turn in by_text.turns]
    assert [turn.receipt.route for turn in result.turns[1:]] == [Route.TEXT] * 2
    codes = [reason.code for reason in result.turns[1].reasons]
    assert codes == [ReasonCode.STORE_ERROR, ReasonCode.NO_KV]
    with pytest.raises(StoreFull):
        run_pipeline(pipeline_of(CASCADE), engine, small, route="baton")


def test_route_baton_is_strict(engine: Any, pipeline_of: Make) -> None:
    """Segments that vanish are an error by route baton and a reason by auto."""

    class Forgetful(MemoryStore):
        def open(self, key: Any) -> Any:
            if key.kind is Kind.SEGMENT:
                self.delete(key)
            return super().open(key)

    with pytest.raises(BatonRefused) as caught:
        run_pipeline(pipeline_of(CASCADE), engine, Forgetful(), route="baton")
    assert caught.value.reason_code == "segment-missing"
    result = run_pipeline(pipeline_of(CASCADE), engine, Forgetful())
    assert result.turns[1].reasons[0].code is ReasonCode.SEGMENT_MISSING


def test_an_empty_document_is_refused(engine: Any, store: Store, pipeline_of: Make) -> None:
    """A pipeline that reads an input does not run without one."""
    from dataclasses import replace

    with pytest.raises(EmptyInput):
        run_pipeline(replace(pipeline_of(CASCADE), document=" \n"), engine, store)


@pytest.mark.parametrize("route", ["auto", "baton", "text"])
def test_a_document_beyond_the_window_is_refused(
    route: Any, engine: Any, store: Store, pipeline_of: Make
) -> None:
    """A context that the model cannot attend to is a typed error before anything is computed."""
    fed, hook = prompts(engine)
    with pytest.raises(WindowExceeded, match="window holds 512"):
        run_pipeline(pipeline_of(CASCADE, DOCUMENT * 3), engine, store, route=route)
    hook.remove()
    assert fed == []


def test_an_unknown_route_is_refused(engine: Any, store: Store, pipeline_of: Make) -> None:
    """Only three routes can be asked for."""
    with pytest.raises(InputError, match="no route"):
        run_pipeline(pipeline_of(CASCADE), engine, store, route="fastest")  # type: ignore[arg-type]


def test_an_interrupted_run_raises_what_interrupted_it(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Ctrl-C in the middle passes through, and what is stored is whole."""

    def interrupt(event: str, facts: Mapping[str, Any]) -> None:
        if event == "turn-started" and facts["agent"] == "c":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pipeline(pipeline_of(CASCADE), engine, store, domain=LOCAL, observer=interrupt)
    assert len(list(store.list(Kind.BATON))) == 2


def test_the_json_has_exactly_the_promised_fields(
    engine: Any, store: Store, pipeline_of: Make
) -> None:
    """Names of all fields, nulls where nothing was compared, ratios that follow from the rest."""
    plain = run_pipeline(pipeline_of(CASCADE), engine, store).to_json()
    assert list(plain) == ["pipeline", "model", "dtype", "turns", "totals"]
    assert (plain["pipeline"], plain["model"], plain["dtype"]) == ("test", "tiny", "float32")
    assert list(plain["turns"][1]) == [
        "agent", "mode", "route", "reasons", "context_tokens", "reused_tokens", "computed_tokens",
        "bytes_moved", "bytes_deduplicated", "ttft_s", "text_ttft_s", "output", "text_output",
        "fidelity",
    ]  # fmt: skip
    assert plain["turns"][1]["fidelity"] == {"class": "exact", "codec": "raw", "calibration": None}
    assert (plain["turns"][1]["text_ttft_s"], plain["turns"][1]["text_output"]) == (None, None)
    assert plain["totals"] == {
        "wall_s": plain["totals"]["wall_s"],
        "text_wall_s": None,
        "speedup": None,
        "ttft_speedup": None,
    }
    result = run_pipeline(pipeline_of(CASCADE), engine, store, compare=True)
    totals, turns = result.to_json()["totals"], result.to_json()["turns"]
    assert totals["speedup"] == totals["text_wall_s"] / totals["wall_s"]
    by_text, here = (sum(turn[key] for turn in turns[1:]) for key in ("text_ttft_s", "ttft_s"))
    assert totals["ttft_speedup"] == by_text / here
    assert turns[0]["text_ttft_s"] == turns[0]["ttft_s"]
    assert turns[0]["text_output"] == turns[0]["output"]


def test_a_single_agent_is_a_pipeline(engine: Any, store: Store, pipeline_of: Make) -> None:
    """One agent takes no baton: nothing to compare, no ratio to the first token."""
    text = 'agents = [{ name = "a", task = "{input}", max_new_tokens = 4 }]'
    result = run_pipeline(pipeline_of(text), engine, store, compare=True)
    assert (len(result.turns), result.ttft_speedup, result.speedup) == (1, None, 1.0)


def test_surroundings_decide_log_and_note(
    engine: Any, store: Store, pipeline_of: Make, tmp_path: Path
) -> None:
    """A shadow answers by text and is compared, every receipt is logged under one conversation,
    and what quotes the answers of others descends from them."""
    logged: list[Any] = []
    url = f"sqlite:///{tmp_path}/ledger/ledger.db"
    with LedgerKeeper(url, "run", tmp_path / "spool") as keeper:
        around = Surroundings(
            policy=PolicySource(parse_policy({"roll_out": {"mode": "shadow"}})),
            keeper=keeper,
            log=logged.append,
            conversation="c",
        )
        result = run_pipeline(pipeline_of(FAN_OUT), engine, store, around=around)
        assert keeper.flush(30.0)
        by_name = {turn.agent: turn.receipt for turn in result.turns}
        left = by_name["left"].id
        affected = keeper.ask(lambda ledger: ledger.withdraw(left, why="wrong")).affected
    assert {"left", "writer"} <= {node.agent for node in affected}
    assert [receipt.id for receipt in logged] == [turn.receipt.id for turn in result.turns]
    assert {receipt.labels["conversation"] for receipt in logged} == {"c"}
    takers = [turn for turn in result.turns if turn.takes_baton]
    assert {turn.receipt.route for turn in takers} == {Route.TEXT}
    assert all(turn.to_json()["shadow"]["text_tokens"] > 0 for turn in takers)
