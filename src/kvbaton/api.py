"""What users import: engines, agents and stores with sensible defaults from the settings."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvbaton import agent, models, settings
from kvbaton.backing import NOWHERE, Origin, Source
from kvbaton.checking import recorded_losses
from kvbaton.codecs.calibration import (
    EXACT_PROFILE,
    FOLDER,
    Calibrations,
    plan_for,
    stored_calibrations,
)
from kvbaton.codecs.plan import CodecPlan
from kvbaton.context import Context
from kvbaton.deciding import Deciding, PolicySource
from kvbaton.decoding import Decoding, TokenWatch
from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.adopt import Adopted, Ids, adopt, as_batch, is_batch
from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.engines.transformers.load import load_checkpoint, load_tokenizer, wrap_model
from kvbaton.errors import BatonRefused, Filtered, InputError, SettingsError
from kvbaton.following import Following
from kvbaton.forecasts import Forecasts
from kvbaton.gating import TextGate
from kvbaton.ledgers import keeper_of
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.opening import Bearer
from kvbaton.policy.base import Policy
from kvbaton.policy.filter_files import filters_from_toml
from kvbaton.policy.filters import TextFilter
from kvbaton.policy.policy_files import PolicyFile
from kvbaton.probes.first_tokens import WatchRange, watch_of
from kvbaton.references import signers_of
from kvbaton.relay import MAX_LOSSY_HOPS, Checks, Relay
from kvbaton.seals import TrustDomain, local_domain
from kvbaton.stores import Store, open_store
from kvbaton.tuning.probe_limits import FOLDER as PROBE_FOLDER
from kvbaton.tuning.probe_limits import stored_probe_limits
from kvbaton.tuning.watch import FOLDER as WATCH_FOLDER
from kvbaton.tuning.watch import stored_watch_range
from kvbaton.types import Baton, BatonRef, Fidelity, FidelityClass, Role, Span, TokenRun, Transcript
from kvbaton.vaults import sealed
from kvbaton.warming import chains_of, warm_soon

if TYPE_CHECKING:
    import torch

    from kvbaton.probes.limits import ProbeLimits

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


_making_domain = threading.Lock()


@cache
def _domain(folder: Path, name: str, passphrase_file: Path | None) -> TrustDomain:
    return local_domain(folder, name, passphrase_file=passphrase_file)


def default_domain() -> TrustDomain:
    """The trust domain that the settings name; its key is made on first use."""
    chosen = settings.from_environment()
    with _making_domain:
        return _domain(chosen.domains, chosen.domain, chosen.key_passphrase_file)


def receipt_log() -> agent.Log | None:
    """Appends receipts to the file that the settings name; None where they name none.

    Each receipt is one line of JSON without prompt text; the file is made readable by its owner
    only.

    Raises
    ------
    SettingsError
        The file cannot be written to.
    """
    path = settings.from_environment().receipts
    if path is None:
        return None
    _append(path, "")  # found out before anything is computed
    return lambda receipt: _append(path, json.dumps(receipt.to_json(), allow_nan=False) + "\n")


def default_ledger(
    store: Store, domain: TrustDomain, ledger: LedgerKeeper | str | None = None
) -> LedgerKeeper | None:
    """The ledger of agents with this store: the named one, or that of the settings where the
    store lasts; None where the name is empty, or they name none."""
    if isinstance(ledger, LedgerKeeper):
        return ledger
    chosen = settings.from_environment()
    lasting = not store.url.startswith("memory:")
    url = (chosen.ledger if lasting else "") if ledger is None else ledger
    if not url:
        return None
    return keeper_of(url, domain.name, chosen.ledger_records, chosen.ledger_seen)


def default_filters() -> tuple[TextFilter, ...]:
    """The text filters of the file that the settings name; none where they name none.

    Raises
    ------
    InputError
        The file cannot be read, or holds something else; ``at`` is the path into it.
    """
    path = settings.from_environment().filters
    return () if path is None else filters_from_toml(path)


def _append(path: Path, line: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0) as file:
            file.write(line.encode("ascii"))
    except OSError as error:
        raise SettingsError(
            f"the receipt cannot be written: {error.strerror or error}", at=str(path)
        ) from error


def calibrated(function: str) -> frozenset[str]:
    """Digests of the calibration records that are known here for a function's digest."""
    return _calibrations(function).digests


def _calibrations(function: str) -> Calibrations:
    """The records of a function; read again when the folder has changed."""
    data_dir = settings.from_environment().data_dir
    folder = data_dir / FOLDER / function
    stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
    return _read_calibrations(function, data_dir, stamp)


@lru_cache(maxsize=16)
def _read_calibrations(function: str, data_dir: Path, stamp: int) -> Calibrations:
    del stamp  # part of the key only
    return stored_calibrations(function, data_dir)


def checks_for(engine: Engine) -> Checks:
    """How caches are held to their tokens, by what was measured on the model."""
    records = _calibrations(engine.function.digest)

    def plan(calibration: str) -> CodecPlan | None:
        record = records.get(calibration)
        return None if record is None else record.plan

    return Checks(losses=recorded_losses(records.get), limits=_probe_limits, plans=plan)


def probe_limits(engine: Engine) -> ProbeLimits | None:
    """Limits of windows that were measured on a model."""
    return _probe_limits(engine.function.digest)


def _probe_limits(function: str) -> ProbeLimits | None:
    """The limits of a function; read again when the folder has changed."""
    data_dir = settings.from_environment().data_dir
    folder = data_dir / PROBE_FOLDER
    stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
    return _read_probe_limits(function, data_dir, stamp)


@lru_cache(maxsize=16)
def _read_probe_limits(function: str, data_dir: Path, stamp: int) -> ProbeLimits | None:
    del stamp  # part of the key only
    return stored_probe_limits(function, data_dir)


def watch_for(engine: Engine) -> agent.WatchFor:
    """Which watch the first tokens of an answer get.

    Answers from exact caches are not watched: their bytes are the ones that the sender computed
    with.  Neither are those of models on which no range was measured.
    """

    def watch(fidelity: Fidelity, how: Decoding) -> TokenWatch | None:
        if fidelity.kind is FidelityClass.EXACT:
            return None
        limits = _watch_range(engine.function.digest)
        if limits is None:
            return None
        measured = how.sampling.temperature <= 1  # higher temperatures were not
        return watch_of(cast("TransformersEngine", engine), limits, choices=measured)

    return watch


def _watch_range(function: str) -> WatchRange | None:
    """The range of a function; read again when the folder has changed."""
    data_dir = settings.from_environment().data_dir
    folder = data_dir / WATCH_FOLDER
    stamp = folder.stat().st_mtime_ns if folder.is_dir() else 0
    return _read_watch_range(function, data_dir, stamp)


@lru_cache(maxsize=16)
def _read_watch_range(function: str, data_dir: Path, stamp: int) -> WatchRange | None:
    del stamp  # part of the key only
    return stored_watch_range(function, data_dir)


def plan_of(engine: Engine, profile: str) -> CodecPlan | None:
    """The codec plan of a profile as it was measured on a model; None for ``exact``.

    Raises
    ------
    NotCalibrated
        It was not measured on this model; the hint is the command that does.
    """
    if profile == EXACT_PROFILE:
        return None
    function = engine.function.digest
    return plan_for(
        profile,
        function=function,
        model=engine.name,
        layout=engine.layout,
        calibrations=_calibrations(function),
    )


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
            forecasts=_forecasts(settings.from_environment().data_dir, engine.function.digest),
        ),
    )


@cache
def _forecasts(data_dir: Path, function: str) -> Forecasts:
    """One for all agents of this process: what one learns, all know."""
    return Forecasts(data_dir, function)


def policy_source(policy: Policy | PolicyFile | Path | str | None = None) -> PolicySource:
    """Where a policy comes from; see ``relay_for``.

    Raises
    ------
    SettingsError
        The file is not there, cannot be read, or holds no policy.
    InputError
        Nobody provides a policy of that name.
    """
    default = settings.from_environment().policy
    if isinstance(policy, PolicyFile):
        return PolicySource(policy)
    if isinstance(policy, Path):
        if not policy.is_file():
            raise SettingsError("the policy cannot be read: there is no such file", at=str(policy))
        return PolicySource(policy)
    return PolicySource(default, policy)


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

    def hand_off(one: Adopted) -> Baton:
        origin = one.cache.origin or NOWHERE
        return relay.hand_off(
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

    batons = [hand_off(one) for one in adopted]
    return batons if is_batch(ids) else batons[0]


def attach_cache(
    engine: Engine,
    baton: Baton | BatonRef | str,
    new_ids: Sequence[int] = (),
    *,
    store: Relay | Store | str | None = None,
    room: int | None = None,
    deadline_s: float = agent.DEADLINE_S,
    receiver: str = "generate",
    ticket: str | None = None,
    filters: Sequence[TextFilter] | None = None,
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
    filters
        Asked for the baton's text before anything is attached; by default those of the settings.

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
    BatonUnavailable, NotTrusted, Filtered
        The baton cannot be read, or may not be.
    """
    relay = _relay(engine, store)
    opened = relay.open(baton, deadline_s=deadline_s, bearer=Bearer(receiver, ticket))
    gate = TextGate(engine, tuple(default_filters() if filters is None else filters))
    left, _ = gate.arriving(opened)
    if left.transcript is not opened.transcript:
        raise Filtered("a filter took something out of the baton's text: its cache is not used")
    ids = (*opened.transcript.ids, *new_ids)
    cached = min(opened.manifest.cached_tokens, len(ids) - 1)
    taken = relay.take(
        opened,
        prompt_tokens=len(ids),
        reusable=cached,
        room=len(ids) - cached + (engine.default_room if room is None else room),
        deadline_s=deadline_s,
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
        How the agent's caches are encoded: ``exact``, or a lossy profile that was measured on the
        model, such as ``near-lossless`` or ``compact``.
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
        relay = relay_for(
            engine, store, domain, profile=profile, max_lossy_hops=max_lossy_hops, policy=policy
        )
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
        )
