"""Cases: the cache of each treatment stands for what it should, and nothing finds another's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.audit.conftest import equipment_of, unit_of

from kvbaton.audit.case import Case, shared_tokens
from kvbaton.audit.treatments import treatment
from kvbaton.errors import KvbatonError
from kvbaton.prompts import Prompt
from kvbaton.types import ReasonCode, Route

ASK = "Which colour?"
WHOLE = ["T0", "T1", "T2", "T3", "T4", "T5", "T5-shuffled"]


def taken(case: Case, name: str) -> Any:
    """A receiver's turn behind a treatment."""
    return case.take(treatment(name), ASK, max_new_tokens=3, ignore_eos=True)


def cache_of(case: Case, name: str, tokens: int) -> list[torch.Tensor]:
    """Keys of the first ``tokens`` positions of a receiver, by layer."""
    cache = taken(case, name).conversation.cache
    return [cache.layer_view(n, 0, tokens)[0].clone() for n in range(len(cache.layers))]


def test_all_treatments_of_the_whole_read_the_same_ids(case: Case) -> None:
    """What differs between two of them is caused by the cache alone."""
    prompts = {}
    for name in WHOLE:
        turn = taken(case, name)
        prompts[name] = turn.conversation.ids[: turn.tokens - len(turn.ids)]
    assert len({tuple(ids) for ids in prompts.values()}) == 1


@pytest.mark.parametrize(
    ("name", "attached"),
    [
        ("T0", lambda p, g: 0),
        ("T1", lambda p, g: p),
        ("T2", lambda p, g: g - 1),
        ("T3", lambda p, g: p + g - 1),
        ("T4", lambda p, g: p + g - 1),
        ("T5", lambda p, g: p + g - 1),
    ],
)
def test_just_the_stated_ids_are_attached_and_the_rest_is_run(
    case: Case, name: str, attached: Any
) -> None:
    """Reused and computed positions add up to the prompt, counted at the model."""
    receipt = taken(case, name).receipt
    wanted = attached(case.prompt_tokens, len(case.turn.ids))
    assert receipt.reused_tokens == wanted
    assert receipt.computed_tokens == receipt.context_tokens - wanted
    assert receipt.route is (Route.TEXT if name == "T0" else Route.BATON)


@pytest.mark.parametrize("name", ["T1", "T2", "T3"])
def test_the_right_cache_says_what_text_says(case: Case, name: str) -> None:
    """In float32 the answers of all honest treatments are those by text."""
    assert taken(case, name).ids == taken(case, "T0").ids
    tokens = case.turn.cached
    for mine, theirs in zip(
        cache_of(case, name, tokens), cache_of(case, "T0", tokens), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["T4", "T5", "T5-shuffled"])
def test_a_control_has_other_numbers_of_the_same_shape(case: Case, name: str) -> None:
    """Every layer differs; the shuffled one holds the same numbers elsewhere."""
    tokens = case.turn.cached
    mine, right = cache_of(case, name, tokens), cache_of(case, "T3", tokens)
    for one, other in zip(mine, right, strict=True):
        assert one.shape == other.shape and not torch.allclose(one, other, atol=1e-3)
        if name == "T5":
            assert not one.any()
        if name == "T5-shuffled":
            torch.testing.assert_close(one.sort(1).values, other.sort(1).values, rtol=0, atol=0)


def test_a_control_is_made_of_another_conversation(case: Case) -> None:
    """The numbers of T4 are those of the next unit's own ids."""
    tokens = case.turn.cached
    cache = case.engine.new_cache(tokens)
    case.engine.forward(cache, case._other_ids(tokens))
    for layer, mine in enumerate(cache_of(case, "T4", tokens)):
        torch.testing.assert_close(mine, cache.layer_view(layer, 0, tokens)[0])
    assert case._other_ids(tokens) != tuple(case.turn.conversation.ids[:tokens])


@pytest.mark.parametrize("spans", ["prompt", "generated", "all"])
def test_slices_and_their_text_read_the_same_ids(case: Case, spans: str) -> None:
    """A slice hangs behind the receiver's own beginning; its reference runs just that."""
    mine, text = taken(case, f"S:{spans}"), taken(case, f"S0:{spans}")
    asked = mine.tokens - len(mine.ids)
    assert mine.conversation.ids[:asked] == text.conversation.ids[:asked]
    assert text.receipt.reused_tokens == 0 < mine.receipt.reused_tokens
    repaired = taken(case, f"S:{spans}+repair").receipt
    assert repaired.recomputed_token_layers > 0 == mine.receipt.recomputed_token_layers


def test_zero_decode_leaves_the_message_out(case: Case) -> None:
    """The receiver reads the prompt only, by cache or by text."""
    mine, text = taken(case, "Z"), taken(case, "Z0")
    asked = mine.tokens - len(mine.ids)
    assert mine.conversation.ids[:asked] == text.conversation.ids[:asked]
    message = tuple(case.turn.ids[:-1])
    ids = tuple(mine.conversation.ids[:asked])
    assert all(ids[n : n + len(message)] != message for n in range(len(ids)))
    assert mine.receipt.reused_tokens > 0 and mine.ids == text.ids


def test_a_sender_can_be_made_to_say_what_it_has_said(audited_engine: Any, case: Case) -> None:
    """A case that is made again from the ids of its message hands off the same ids."""
    known = {
        "message_ids": list(case.turn.ids),
        "sender": {"prefill_s": 1.0, "decode_s": 2.0, "tokenize_s": 3.0},
        "hand_off": {"T3": {"seconds": 4.0}},
    }
    again = Case(equipment_of(audited_engine), unit_of(0), (unit_of(1),), known=known)
    assert again.sender_s["decode_s"] == 2.0 and again.tokenize_s == 3.0
    assert again.sent(treatment("T3")).seconds == 4.0  # timed when it was first made
    assert again.turn.ids == case.turn.ids and again.turn.text == case.turn.text
    assert again.turn.conversation.ids == case.turn.conversation.ids
    assert again.turn.cached == case.turn.cached
    assert taken(again, "T3").ids == taken(case, "T3").ids
    again.close()


def test_a_task_may_bring_the_message_along(audited_engine: Any) -> None:
    """Then the sender says that, and what ends a turn is left pending."""
    made = Case(equipment_of(audited_engine), unit_of(0, message="The colour is red."), ())
    assert made.turn.text == "The colour is red."
    assert made.turn.ids[-1] in audited_engine.chat.stop_ids
    assert made.turn.cached == made.turn.tokens - 1
    closed = audited_engine.chat.close(made.turn.conversation.ids[: made.turn.tokens - 1])
    assert made.turn.ids[-1] == closed[0]  # the token that ends a turn, not just any end
    made.close()


def test_no_treatment_finds_the_cache_of_another(case: Case) -> None:
    """Each has a store of its own: a control's numbers never reach a receiver that runs text."""
    before = taken(case, "T0").ids
    for name in ("T4", "T5", "T3"):
        taken(case, name)
    stores = [case.relay(name).store for name in ("sender", "T0", "T3", "T4", "T5")]
    assert len({id(store) for store in stores}) == len(stores)
    assert taken(case, "T0").ids == before


def test_what_a_model_cannot_do_is_an_error_of_its_treatment(windowed_engine: Any) -> None:
    """Window layers cannot be sliced; their whole cache can be handed over all the same."""
    made = Case(equipment_of(windowed_engine), unit_of(0), (unit_of(1),))
    with pytest.raises(KvbatonError):
        made.sent(treatment("S:prompt"))
    assert taken(made, "T3").receipt.route is Route.BATON
    made.close()


def test_text_is_what_was_asked_for(case: Case) -> None:
    """The reference's receipt says that nothing went wrong."""
    reasons = taken(case, "T0").receipt.reasons
    assert [reason.code for reason in reasons] == [ReasonCode.ASKED_FOR_TEXT]


def test_questions_share_their_beginning() -> None:
    """All but one id at the least of the shortest prompt."""

    def prompt(*ids: int) -> Prompt:
        return Prompt(ids, (), ())

    assert shared_tokens([prompt(1, 2, 3, 4), prompt(1, 2, 5)]) == 2
    assert shared_tokens([prompt(1, 2, 3)]) == 2
    assert shared_tokens([prompt(1, 2), prompt(1, 2, 3)]) == 1
