"""Policy files: rules and roll-out as TOML, by receiver (``docs/guides/roll-out.md``).

What an agent's own tables say replaces, key by key, what stands at the top; only the kill switch
adds up: what is switched off at the top is off for everybody.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from kvbaton.errors import InputError, SettingsError
from kvbaton.policy.base import DEFAULT_POLICY, policy_names
from kvbaton.policy.rollout import RollOut, RollOutMode
from kvbaton.policy.rules import BeyondHops, PolicyRules, StaleRule
from kvbaton.records import read_toml_text
from kvbaton.types import JSON, FidelityClass

MAX_FILE_BYTES = 1 << 20
MAX_AGENTS = 1024

T = TypeVar("T")
Reading = Callable[[Any, str], Any]
"""Called with a value of a file and its path; gives the value as the rule wants it."""


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """What holds for one receiver."""

    rules: PolicyRules = field(default_factory=PolicyRules)
    roll_out: RollOut = field(default_factory=RollOut)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A whole policy file: ``policy`` names the policy, ``agents`` are those with own tables."""

    policy: str = DEFAULT_POLICY
    common: AgentPolicy = field(default_factory=AgentPolicy)
    agents: Mapping[str, AgentPolicy] = field(default_factory=dict)

    def for_agent(self, name: str) -> AgentPolicy:
        """What holds for a receiver: its own tables, or else those at the top."""
        return self.agents.get(name, self.common)


def load_policy_file(path: Path | str) -> PolicyFile:
    """Read a policy file.

    Raises
    ------
    SettingsError
        The file cannot be read, is not TOML, or holds something else than a policy; ``at`` is
        the path into it.
    """
    path = Path(path)
    try:
        parsed = tomllib.loads(
            read_toml_text(
                path, "the policy", "is", limit_bytes=MAX_FILE_BYTES, error=SettingsError
            )
        )
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path.name} is not TOML: {error}") from error
    try:
        return parse_policy(parsed, folder=path.parent)
    except SettingsError as error:
        raise SettingsError(
            f"{path.name}: {error.sentence}", at=error.at, hint=error.hint
        ) from error


def parse_policy(value: Any, *, folder: Path = Path()) -> PolicyFile:
    """A policy from the tables of a file.

    Parameters
    ----------
    value
        What ``tomllib`` gave.
    folder
        What a relative ``kill_file`` is relative to.

    Raises
    ------
    SettingsError
        It is no policy; ``at`` is the path into it.
    """
    top = _table(value, "$", _TOP)
    name = _text(top.get("policy", DEFAULT_POLICY), "$.policy")
    if name not in policy_names():
        raise SettingsError(
            f"no policy is called {name[:80]!r}", at="$.policy", hint=closest(name, policy_names())
        )
    said = _said(top, "$")
    agents = _table(top.get("agents", {}), "$.agents", None)
    if len(agents) > MAX_AGENTS:
        raise SettingsError(f"there are more than {MAX_AGENTS} agents", at="$.agents")
    return PolicyFile(
        policy=name,
        common=_policy(said, "$", folder),
        agents={
            agent: _policy(_agent(table, at, said), at, folder)
            for agent, table, at in _each(agents)
        },
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What tables say, key by key, before it is put together."""

    rules: JSON
    roll_out: JSON
    kill_files: tuple[str, ...]


def _said(table: Mapping[str, Any], at: str) -> _Said:
    rules = _values(table.get("rules", {}), f"{at}.rules", _RULES)
    roll_out = _values(table.get("roll_out", {}), f"{at}.roll_out", _ROLL_OUT)
    file = roll_out.pop("kill_file", None)
    return _Said(rules, roll_out, () if file is None else (file,))


def _each(agents: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    return [(agent, table, _place("$.agents", agent)) for agent, table in agents.items()]


def _agent(value: Any, at: str, common: _Said) -> _Said:
    """An agent's own tables over those at the top."""
    own = _said(_table(value, at, _AGENT), at)
    roll_out = common.roll_out | own.roll_out
    if "mode" in own.roll_out and "share" not in own.roll_out:
        roll_out.pop("share", None)  # a share belongs to the mode that it was written for
    roll_out["kill"] = common.roll_out.get("kill", False) or own.roll_out.get("kill", False)
    return _Said(common.rules | own.rules, roll_out, common.kill_files + own.kill_files)


def _policy(said: _Said, at: str, folder: Path) -> AgentPolicy:
    files = tuple(folder / name for name in said.kill_files)
    if said.roll_out.get("mode") is RollOutMode.CANARY and "share" not in said.roll_out:
        raise SettingsError(
            "a canary needs its 'share'", at=f"{at}.roll_out", hint="from 0 to 1, such as 0.05"
        )
    return AgentPolicy(
        _made(lambda: PolicyRules(**said.rules), f"{at}.rules"),
        _made(lambda: RollOut(**said.roll_out, kill_files=files), f"{at}.roll_out"),
    )


def _made(make: Callable[[], T], at: str) -> T:
    """What is made, its bounds checked where they stand; their errors get the file's path."""
    try:
        return make()
    except InputError as error:
        place = at + error.at.removeprefix("$")
        raise SettingsError(error.sentence, at=place, hint=error.hint) from error


# --- values -------------------------------------------------------------------------------------


def _as_it_is(value: Any, at: str) -> Any:
    """For numbers: the rules check their types and bounds themselves."""
    return value


def _flag(value: Any, at: str) -> bool:
    if type(value) is not bool:
        raise SettingsError("must be true or false", at=at)
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise SettingsError("must be a string", at=at)
    if not value or "\0" in value:
        raise SettingsError("must not be empty, nor hold a NUL", at=at)
    return value


def _names(value: Any, at: str) -> frozenset[str]:
    if not isinstance(value, list):
        raise SettingsError("must be a list of strings", at=at)
    return frozenset(_text(item, f"{at}[{i}]") for i, item in enumerate(value))


def _one_of(words: type[StrEnum]) -> Reading:
    def read(value: Any, at: str) -> StrEnum:
        known = tuple(word.value for word in words)
        if _text(value, at) not in known:
            raise SettingsError(
                f"{value[:80]!r} is not known here", at=at, hint=closest(value, known)
            )
        return words(value)

    return read


_RULES: Mapping[str, Reading] = {
    "minimum_fidelity": _one_of(FidelityClass),
    "max_lossy_hops": _as_it_is,
    "max_exact_hops": _as_it_is,
    "beyond_hops": _one_of(BeyondHops),
    "min_tokens": _as_it_is,
    "max_rounds": _as_it_is,
    "max_moves_per_minute": _as_it_is,
    "stale": _one_of(StaleRule),
    "known_freshness": _flag,
    "critical_tags": _names,
    "routes": _names,
    "worth_it": _flag,
    "tie": _as_it_is,
}
_ROLL_OUT: Mapping[str, Reading] = {
    "mode": _one_of(RollOutMode),
    "share": _as_it_is,
    "experiment": _text,
    "kill": _flag,
    "kill_file": _text,
}
_AGENT: Mapping[str, Reading] = {"rules": _as_it_is, "roll_out": _as_it_is}
_TOP: Mapping[str, Reading] = {"policy": _text, "agents": _as_it_is, **_AGENT}


# --- reading ------------------------------------------------------------------------------------


def _table(value: Any, at: str, known: Mapping[str, Reading] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError("must be a table", at=at)
    for key in value:
        if known is not None and key not in known:
            raise SettingsError(
                f"unknown key {key[:80]!r}", at=_place(at, key), hint=closest(key, tuple(known))
            )
    return value


def _values(value: Any, at: str, known: Mapping[str, Reading]) -> JSON:
    table = _table(value, at, known)
    return {key: known[key](said, _place(at, key)) for key, said in table.items()}


def _place(at: str, key: str) -> str:
    return f"{at}.{key}" if key.replace("-", "_").isidentifier() else f"{at}[{key[:80]!r}]"


def closest(word: str, known: tuple[str, ...]) -> str:
    """A hint: what may have been meant, and what there is."""
    close = get_close_matches(word[:80], known, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}known: {', '.join(known)}"
