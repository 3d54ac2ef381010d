"""What users import: engines, agents and stores with sensible defaults from the settings."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvbaton import agent, models, settings
from kvbaton.context import Context
from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.load import load_checkpoint, wrap_model
from kvbaton.errors import SettingsError
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain, local_domain
from kvbaton.stores import Store, open_store

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


_making_domain = threading.Lock()


@cache
def _domain(folder: str, name: str) -> TrustDomain:
    return local_domain(Path(folder), name)


def default_domain() -> TrustDomain:
    """The trust domain that the settings name; its key is made on first use."""
    chosen = settings.from_environment()
    with _making_domain:
        return _domain(str(chosen.domains), chosen.domain)


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


def _append(path: Path, line: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0) as file:
            file.write(line.encode("ascii"))
    except OSError as error:
        raise SettingsError(
            f"the receipt cannot be written: {error.strerror or error}", at=str(path)
        ) from error


def relay_for(
    engine: Engine, store: Store | str | None = None, domain: TrustDomain | None = None
) -> Relay:
    """A relay over a store, its URL, or the store of this process."""
    opened = store if isinstance(store, Store) else open_store(store or MEMORY)
    return Relay(engine, opened, domain or default_domain())


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
        Store full segments while decoding, so that a hand-off has only the tail left to do.
    log
        Called with every receipt; by default it goes to the file that the settings name, if any.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        system: str | None = None,
        context: Context | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        store: Store | str | None = None,
        domain: TrustDomain | None = None,
        stream: bool = True,
        log: agent.Log | None = None,
    ) -> None:
        preamble = context.text if isinstance(context, Context) else context
        super().__init__(
            name,
            engine,
            relay_for(engine, store, domain),
            system=system,
            preamble=preamble,
            tools=tools,
            stream=stream,
            log=log or receipt_log(),
        )
