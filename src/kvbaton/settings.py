"""Settings from the environment: the only file that reads it.

Every setting is one variable, has a default, and is checked: a value that cannot be used and a
``KVBATON_`` variable that does not exist are errors, never ignored.  ``docs/guides/settings.md``
lists them; a test holds the list to ``VARIABLES``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path, user_data_path

from kvbaton.errors import SettingsError

PREFIX = "KVBATON_"
DEFAULT_DEADLINE_S = 60.0

_DOMAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:.+")
_TRUE, _FALSE = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")


def _default_data_dir() -> Path:
    return user_data_path("kvbaton", appauthor=False)


def _default_cache_dir() -> Path:
    return user_cache_path("kvbaton", appauthor=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the environment may decide.

    Parameters
    ----------
    data_dir
        Pulled models, measured noise floors, the domain's keys, and the default store.
    cache_dir
        Unfinished downloads and digests of weights; may be deleted at any time.
    store
        URL of the store where none is named; ``dir://<data_dir>/store`` by default.
    domain
        Trust domain: caches of different domains have nothing in common.
    deadline_s
        Seconds that a take may spend until the first token.
    ledger
        URL of the ledger of agents whose store lasts; ``sqlite:///<data_dir>/ledger.db`` by
        default, empty where there is none.
    receipts
        File to which receipts are appended as JSON lines, or None.
    key_passphrase_file
        File (0600) with the passphrase of the private keys, or None; the passphrase itself would
        leak to every child process.
    filters
        TOML file of text filters that every hand-off and take is held to, or None.
    offline
        Never ask the Hugging Face hub (its own variable, ``HF_HUB_OFFLINE``).
    """

    data_dir: Path = field(default_factory=_default_data_dir)
    cache_dir: Path = field(default_factory=_default_cache_dir)
    store: str = ""
    domain: str = "local"
    deadline_s: float = DEFAULT_DEADLINE_S
    ledger: str | None = None
    receipts: Path | None = None
    filters: Path | None = None
    key_passphrase_file: Path | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if not self.store:
            object.__setattr__(self, "store", f"dir://{self.data_dir / 'store'}")
        if self.ledger is None:
            object.__setattr__(self, "ledger", f"sqlite:///{self.data_dir / 'ledger.db'}")

    @property
    def policy(self) -> Path:
        """File of the policy that holds where none is named, if there is one."""
        return self.data_dir / "policy.toml"

    @property
    def ledger_records(self) -> Path:
        """Folder where records wait for the ledger."""
        return self.data_dir / "ledger-spool"

    @property
    def ledger_seen(self) -> Path:
        """Folder where the most that ledgers have said is kept."""
        return self.data_dir / "ledger-seen"

    @property
    def domains(self) -> Path:
        """Folder of the trust domains' secrets, of private keys, and of the trust file."""
        return self.data_dir / "domains"


def _path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError("an absolute path")
    return path


def _store(text: str) -> str:
    if not _SCHEME.fullmatch(text):
        raise ValueError("a URL such as dir:///var/lib/kvbaton")
    return text


def _domain(text: str) -> str:
    if not _DOMAIN.fullmatch(text):
        raise ValueError("1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit")
    return text


def _ledger(text: str) -> str:
    if text.lower() in _FALSE:
        return ""
    if not _SCHEME.fullmatch(text):
        raise ValueError("a URL such as sqlite:////var/lib/kvbaton/ledger.db, or off")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a positive number of seconds")
    return value


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"one of {', '.join(v for v in _TRUE + _FALSE if v)}")
    return text.lower() in _TRUE


VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "KVBATON_DATA_DIR": ("data_dir", _path),
    "KVBATON_CACHE_DIR": ("cache_dir", _path),
    "KVBATON_STORE": ("store", _store),
    "KVBATON_DOMAIN": ("domain", _domain),
    "KVBATON_DEADLINE_S": ("deadline_s", _seconds),
    "KVBATON_LEDGER": ("ledger", _ledger),
    "KVBATON_RECEIPTS": ("receipts", _path),
    "KVBATON_FILTERS": ("filters", _path),
    "KVBATON_KEY_PASSPHRASE_FILE": ("key_passphrase_file", _path),
    "HF_HUB_OFFLINE": ("offline", _flag),
}
"""Variable -> the setting it gives and the check of its text."""


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from ``environment``, or from the process's own.

    An empty variable counts as not set.

    Raises
    ------
    SettingsError
        A value cannot be used, or a ``KVBATON_`` variable does not exist; names the variable.
    """
    found = os.environ if environment is None else environment
    for name in found:
        if name.startswith(PREFIX) and name not in VARIABLES:
            raise _unknown(name)
    given = {
        setting: _checked(name, found[name], check)
        for name, (setting, check) in VARIABLES.items()
        if found.get(name)
    }
    return Settings(**given)


def _checked(name: str, text: str, check: Callable[[str], Any]) -> Any:
    try:
        return check(text)
    except ValueError as error:
        raise SettingsError(f"{name} is {text[:200]!r}, and must be {error}", at=name) from None


def _unknown(name: str) -> SettingsError:
    close = get_close_matches(name, VARIABLES, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    return SettingsError(
        f"there is no setting {name}",
        at=name,
        hint=f"{meant}the settings are {', '.join(VARIABLES)}",
    )
