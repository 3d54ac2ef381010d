"""What holds where nobody says otherwise: the settings, and what was measured on this machine."""

from __future__ import annotations

import json
import os
import threading
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvbaton import agent, settings
from kvbaton.checking import recorded_losses
from kvbaton.codecs.calibration import (
    EXACT_PROFILE,
    FOLDER,
    Calibrations,
    plan_for,
    stored_calibrations,
)
from kvbaton.codecs.plan import CodecPlan
from kvbaton.deciding import PolicySource
from kvbaton.decoding import Decoding, TokenWatch
from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.errors import SettingsError
from kvbaton.forecasts import Forecasts
from kvbaton.ledgers import keeper_of
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.policy.base import Policy
from kvbaton.policy.filter_files import filters_from_toml
from kvbaton.policy.filters import TextFilter
from kvbaton.policy.policy_files import PolicyFile
from kvbaton.probes.first_tokens import WatchRange, watch_of
from kvbaton.relay import Checks
from kvbaton.seals import TrustDomain, local_domain
from kvbaton.stores import Store
from kvbaton.tuning.probe_limits import FOLDER as PROBE_FOLDER
from kvbaton.tuning.probe_limits import stored_probe_limits
from kvbaton.tuning.watch import FOLDER as WATCH_FOLDER
from kvbaton.tuning.watch import stored_watch_range
from kvbaton.types import Fidelity, FidelityClass

if TYPE_CHECKING:
    from kvbaton.probes.limits import ProbeLimits


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


def forecasts_of(engine: Engine) -> Forecasts:
    """What is predicted of takes by a model on this host, where that was measured."""
    return _forecasts(settings.from_environment().data_dir, engine.function.digest)


@cache
def _forecasts(data_dir: Path, function: str) -> Forecasts:
    """One for all agents of this process: what one learns, all know."""
    return Forecasts(data_dir, function)


def policy_source(policy: Policy | PolicyFile | Path | str | None = None) -> PolicySource:
    """Where a policy comes from; see ``relay_for``.

    Raises
    ------
    SettingsError
        A file that is named is not there, cannot be read, or holds no policy.
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
    return PolicySource(default, policy, strict=False)
