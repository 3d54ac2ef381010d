"""What users import: engines, agents and stores with sensible defaults from the settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbaton import agent, models, settings
from kvbaton.backing import NOWHERE, Origin, Source
from kvbaton.choosing import AUTO, Choosing
from kvbaton.clock import Clock
from kvbaton.codecs.calibration import EXACT_PROFILE
from kvbaton.context import Context
from kvbaton.deciding import Deciding
from kvbaton.defaults import (
    calibrated,
    checks_for,
    default_domain,
    default_filters,
    default_ledger,
    forecasts_of,
    plan_of,
    policy_source,
    receipt_log,
    watch_for,
)
from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.adopt import Adopted, Ids, adopt, as_batch, is_batch
from kvbaton.engines.transformers.load import load_checkpoint, load_tokenizer, wrap_model
from kvbaton.errors import BatonRefused, Filtered, InputError
from kvbaton.following import Following, baton_node
from kvbaton.gating import TextGate
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.opening import Bearer
from kvbaton.policy.base import Policy
from kvbaton.policy.filters import TextFilter
from kvbaton.policy.policy_files import PolicyFile
from kvbaton.policy.rules import StaleRule
from kvbaton.references import open_current, signers_of
from kvbaton.relay import MAX_LOSSY_HOPS, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Store, open_store
from kvbaton.taking import stale_rule
from kvbaton.types import Baton, BatonRef, Role, Span, TokenRun, Transcript
from kvbaton.vaults import sealed
from kvbaton.warming import chains_of, warm_soon

if TYPE_CHECKING:
    import torch


MEMORY = "memory://kvbaton"
"""The default store of agents in one process; nothing is written to disk."""


def load(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str = "auto",
    attention: str | None = None,
    deterministic: bool = False,
    threads: int = 1,
) -> Engine:
    """Load a model by built-in name, local path or Hugging Face id.

    Parameters
    ----------
    dtype
        ``bfloat16``, ``float16``, ``float32`` or ``float64``: of weights and cache.
    device
        A torch device, or ``auto``.
    attention
        The attention kernel, as transformers names it.
    deterministic
        Fix chunks and threads, so that two processes export identical bytes for the same ids.

    Raises
    ------
    UnknownModel
        Nothing of that name; close matches are named.
    ModelUnavailable
        The weights are not on this machine and cannot be fetched.
    UnsupportedLayout, UnsupportedModel
        The model's cache cannot be handed over faithfully; the sentence says why.
    """
    chosen = settings.from_environment()
    source = models.resolve(name, data_dir=chosen.data_dir)
    return load_checkpoint(
        source.path_or_id,
        name=name,
        dtype=dtype,
        device=device,
        attention=attention,
        deterministic=deterministic,
        threads=threads,
        digests=chosen.cache_dir / "digests",
        offline=chosen.offline,
    )


def wrap(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "",
    deterministic: bool = False,
    threads: int = 1,
) -> Engine:
    """An engine around a model and tokenizer that you have loaded yourself.

    Raises
    ------
    UnsupportedLayout, UnsupportedModel
        The model's cache cannot be handed over faithfully; the sentence says why.
    """
    return wrap_model(model, tokenizer, name=name, deterministic=deterministic, threads=threads)


def decoder_of(name: str) -> Callable[[Sequence[int]], str]:
    """Turns token ids of a model into text; its weights are not loaded.

    Raises
    ------
    UnknownModel
        Nothing of that name; close matches are named.
    ModelUnavailable
        Its tokenizer is not on this machine and cannot be fetched.
    """
    chosen = settings.from_environment()
    source = models.resolve(name, data_dir=chosen.data_dir)
    tokenizer = load_tokenizer(source.path_or_id, offline=chosen.offline)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    return decode


def relay_for(
    engine: Engine,
    store: Store | str | None = None,
    domain: TrustDomain | None = None,
    *,
    profile: str = EXACT_PROFILE,
    max_lossy_hops: int | None = MAX_LOSSY_HOPS,
    policy: Policy | PolicyFile | Path | str | None = None,
) -> Relay:
    """A relay over a store, its URL, or the store of this process.

    Parameters
    ----------
    profile
        How caches are encoded: ``exact``, or a lossy profile that was measured on the model.
    max_lossy_hops
        Lossy or approximate hand-offs in a row after which a receiver prefills the ids.
    policy
        By which route batons are taken: a policy, its name, or the rules of a file, which may
        change while it is in force; by default those of the settings, if there are any.

    Raises
    ------
    NotCalibrated
        The profile was not measured on this model; the hint is the command that does.
    SettingsError
        The policy's file cannot be read, or holds no policy.
    """
    opened = store if isinstance(store, Store) else open_store(store or MEMORY)
    plan = plan_of(engine, profile)
    if plan is not None:
        warm_soon(chains_of(plan), engine.layout.dtype)
    trusted = domain or default_domain()
    return Relay(
        engine,
        sealed(opened, trusted),
        trusted,
        plan=plan,
        checks=checks_for(engine),
        deciding=Deciding(
            engine,
            calibrations=calibrated,
            max_lossy_hops=max_lossy_hops,
            source=policy_source(policy),
            forecasts=forecasts_of(engine),
        ),
    )


class StaleContext(UserWarning):
    """What goes on is based on a context that is no longer the current one."""


def _following(relay: Relay, name: str, ledger: LedgerKeeper | str | None) -> Following:
    return Following(default_ledger(relay.store, relay.domain, ledger), name)


def _relay(engine: Engine, store: Relay | Store | str | None) -> Relay:
    return store if isinstance(store, Relay) else relay_for(engine, store)


def export_cache(
    engine: Engine,
    cache: Any,
    ids: Ids,
    *,
    attention_mask: Any = None,
    store: Relay | Store | str | None = None,
    sender: str = "generate",
    text: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    filters: Sequence[TextFilter] | None = None,
    ledger: LedgerKeeper | str | None = None,
) -> Baton | list[Baton]:
    """Hand off a cache that your own code has filled, with ``generate`` or a loop of your own.

    The first layer is computed again and compared: a cache that does not belong to the ids, or
    holds them at other positions, is refused.  Padding never leaves.

    Parameters
    ----------
    engine
        ``wrap`` of the model that computed the cache.
    cache
        A ``DynamicCache``, one that ``attach_cache`` gave, or an output that carries one.
    ids
        Token ids ``[n]``, or ``[batch, n]`` for several sequences: prompt and answer.  Those
        behind the cache, such as the last one that was sampled, are handed off as pending.
    attention_mask
        0 for padding, as the model ran with it; needed where there is padding.
    store
        A store, its URL, or a ``Relay`` for a trust domain of its own; by default the store of
        this process, in memory.
    sender
        Whom the baton is from.
    text, messages
        What a single sequence says, for receivers with another tokenizer; the decoded ids and
        nothing by default.
    filters
        Asked for the text before anything is stored; by default those of the settings.
    ledger
        As for ``Agent``.

    Returns
    -------
    Baton or list of Baton
        One for ``[n]``, a list for ``[batch, n]``.

    Raises
    ------
    UnsupportedLayout
        The cache cannot be read faithfully: quantized, offloaded, static, of another model.
    InputError
        Ids or mask do not belong to the cache.
    Filtered
        A filter refused the text or took something out of it: a cache cannot be redacted.
    StoreError
        The store could not take it.
    """
    adopted = adopt(engine, cache, ids, attention_mask)
    if len(adopted) > 1 and (text is not None or messages):
        raise InputError("text and messages describe one sequence", hint="export them one by one")
    relay = _relay(engine, store)
    gate = TextGate(engine, tuple(default_filters() if filters is None else filters))
    told = tuple(dict(message) for message in messages)
    for one in adopted:
        if not (gate.passes(Transcript(one.ids, "", told)) and gate.outcome(text or "").passed):
            raise Filtered("a filter took something out of the text: the cache may not leave")

    following = _following(relay, sender, ledger)

    def hand_off(one: Adopted) -> Baton:
        origin = one.cache.origin or NOWHERE
        baton = relay.hand_off(
            Source(
                one.cache,
                one.cache.length,
                one.ids,
                parents=origin.parents,
                hops=origin.hops,
                inherited=origin.inherited,
                signers=origin.signers,
            ),
            sender=sender,
            text=engine.chat.text_of(one.ids) if text is None else text,
            spans=(Span(Role.HISTORY, TokenRun(0, len(one.ids))),),
            messages=told,
        )
        troubles = following.note(baton_node(baton, origin.parents, engine.name))
        return replace(baton, warnings=(*baton.warnings, *troubles)) if troubles else baton

    batons = [hand_off(one) for one in adopted]
    return batons if is_batch(ids) else batons[0]


def attach_cache(  # noqa: PLR0913 - all but two have defaults and are named
    engine: Engine,
    baton: Baton | BatonRef | str,
    new_ids: Sequence[int] = (),
    *,
    store: Relay | Store | str | None = None,
    room: int | None = None,
    deadline_s: float = agent.DEADLINE_S,
    receiver: str = "generate",
    ticket: str | None = None,
    stale: StaleRule | str | None = None,
    filters: Sequence[TextFilter] | None = None,
    ledger: LedgerKeeper | str | None = None,
) -> tuple[Any, torch.Tensor]:
    """Take a baton for your own code: its cache, and all ids of the sequence.

    The cache can be passed to ``generate`` or to the model, which write to it: one cache for one
    answer.  It always leaves at least one of the ids to compute::

        cache, ids = kvbaton.attach_cache(engine, baton, new_ids)
        model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache)

    Parameters
    ----------
    engine
        ``wrap`` of the model that is to go on.
    baton
        A baton, its reference, or its id in the store.
    new_ids
        Token ids to add behind the baton's.
    store
        As for ``export_cache``.
    room
        Positions to make room for behind the ids, so that decoding copies nothing.
    deadline_s
        Seconds until the cache is there.
    receiver, ticket
        Who takes it, and the sender's permission, where the trust domain asks for one.
    stale
        What becomes of a baton whose context is no longer the current one: ``label`` goes on with
        a ``StaleContext`` warning, ``fetch`` takes the newer one, ``refuse`` raises.
    filters
        Asked for the baton's text before anything is attached; by default those of the settings.
    ledger
        As for ``Agent``.

    Returns
    -------
    cache
        A ``KVCache`` of transformers' kind.
    ids
        int64 ``[1, n]`` on the model's device: the baton's ids, pending ones too, then the new.

    Raises
    ------
    BatonRefused
        The cache cannot be used; ``reason_code`` says why.  The baton's ids can be prefilled.
    BatonUnavailable, NotTrusted, Filtered, Superseded
        The baton cannot be read, or may not be.
    """
    relay, clock = _relay(engine, store), Clock()
    rules = relay.deciding.rules_of(receiver).rules
    look = _following(relay, receiver, ledger).look(
        clock, asked=stale_rule(stale), rules=rules, deadline_s=deadline_s
    )
    gate = TextGate(engine, tuple(default_filters() if filters is None else filters))
    (opened,), redacted, _ = open_current(
        relay, gate, [baton], [Bearer(receiver, ticket)], clock,
        mode=None, deadline_s=deadline_s, look=look,
    )  # fmt: skip
    if redacted:
        raise Filtered("a filter took something out of the baton's text: its cache is not used")
    told = [*look.replaced, *([] if look.label is None else [look.label])]
    for one in told:
        warnings.warn(one.sentence, StaleContext, stacklevel=2)
    ids = (*opened.transcript.ids, *new_ids)
    cached = min(opened.manifest.cached_tokens, len(ids) - 1)
    taken = relay.take(
        opened,
        prompt_tokens=len(ids),
        reusable=cached,
        room=len(ids) - cached + (engine.default_room if room is None else room),
        deadline_s=deadline_s - clock.elapsed(),
        receiving=look.receiving(receiver, {}, ()),
    )
    if taken.cache is None:
        reason = taken.reasons[0]
        raise BatonRefused(
            f"the baton's cache cannot be attached: {reason.sentence}",
            reason_code=reason.code.value,
            at=reason.at,
            hint="prefill the baton's ids; where none are pending, new_ids may help",
        )
    taken.cache.origin = Origin(
        (opened.id,), opened.manifest.hops, taken.inherited, signers_of([opened])
    )
    return taken.cache, as_batch(engine, ids)


class Agent(agent.Agent):
    """One agent.

    Parameters
    ----------
    name
        How receipts and batons call it.
    engine
        From ``load`` or ``wrap``.
    system
        The agent's own system prompt.
    context
        What several agents share: all of them begin with it, so that it is computed once.
    tools
        Tool descriptions, as chat templates take them.
    store
        A store or its URL; by default the store of this process, in memory.
    domain
        The trust domain; by default the one that the settings name.
    stream
        Store full segments while decoding, so that a hand-off has only the tail left to do; by
        default where there are no filters, which are asked before anything is stored.
    profile
        How the agent's caches are encoded: ``exact``, a lossy profile that was measured on the
        model, such as ``near-lossless`` or ``compact``, or ``auto``: hand-off by hand-off the one
        that is predicted to be fastest, or text, as the policy allows (``kvbaton policy
        calibrate`` measures that).
    max_lossy_hops
        Lossy or approximate hand-offs in a row after which the agent prefills the ids.
    log
        Called with every receipt; by default it goes to the file that the settings name, if any.
    filters
        Asked for the text of a cache before it is handed off and before it is taken; by default
        those of the file that the settings name, if any.
    policy
        By which route batons are taken: a policy, its name, or the ``Path`` of a file with rules;
        by default the file ``policy.toml`` in the data folder, if there is one.
    ledger
        Where the agent notes who builds on what: the URL of a ledger, or a keeper of one; by
        default that of the settings where the store lasts, and ``""`` for none.
    """

    def __init__(  # noqa: PLR0913 - all but two have defaults and are named
        self,
        name: str,
        engine: Engine,
        *,
        system: str | None = None,
        context: Context | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        store: Store | str | None = None,
        domain: TrustDomain | None = None,
        stream: bool | None = None,
        profile: str = EXACT_PROFILE,
        max_lossy_hops: int | None = MAX_LOSSY_HOPS,
        log: agent.Log | None = None,
        filters: Sequence[TextFilter] | None = None,
        policy: Policy | PolicyFile | Path | str | None = None,
        ledger: LedgerKeeper | str | None = None,
    ) -> None:
        fixed = EXACT_PROFILE if profile == AUTO else profile
        relay = relay_for(
            engine, store, domain, profile=fixed, max_lossy_hops=max_lossy_hops, policy=policy
        )
        choosing = None
        if profile == AUTO:
            choosing = Choosing(name, relay, lambda known: plan_of(engine, known))
        preamble = context.text if isinstance(context, Context) else context
        super().__init__(
            name,
            engine,
            relay,
            system=system,
            preamble=preamble,
            tools=tools,
            stream=stream,
            deadline_s=settings.from_environment().deadline_s,
            log=log or receipt_log(),
            watch_for=watch_for(engine),
            filters=default_filters() if filters is None else filters,
            following=Following(default_ledger(relay.store, relay.domain, ledger), name),
            choosing=choosing,
        )
