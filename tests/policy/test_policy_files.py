"""Policy files: what they say, what their agents inherit, and every complaint with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import SettingsError
from kvbaton.policy.base import register_policy
from kvbaton.policy.policy_files import (
    MAX_FILE_BYTES,
    AgentPolicy,
    load_policy_file,
    parse_policy,
)
from kvbaton.policy.rollout import RollOut, RollOutMode
from kvbaton.policy.rules import BeyondHops, PolicyRules, StaleRule
from kvbaton.types import FidelityClass

WHOLE = """
policy = "gates-only"

[rules]
minimum_fidelity = "lossy"
max_lossy_hops = 2
max_exact_hops = 9
beyond_hops = "summary"
min_tokens = 512
max_rounds = 6
max_moves_per_minute = 0.5
stale = "refuse"
known_freshness = true
critical_tags = ["payment", "legal"]
routes = ["exact", "compact"]
worth_it = false
tie = 0.1

[roll_out]
mode = "canary"
share = 0.05
experiment = "autumn"
kill_file = "stop"

[agents.coder.rules]
minimum_fidelity = "exact"

[agents.coder.roll_out]
share = 0.5
kill_file = "stop-coder"

[agents."the writer".roll_out]
mode = "shadow"
"""


def write(folder: Path, text: str) -> Path:
    """A policy file."""
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    """Each key arrives in its rule, as its type."""
    found = load_policy_file(write(tmp_path, WHOLE))
    assert found.policy == "gates-only"
    assert found.common.rules == PolicyRules(
        minimum_fidelity=FidelityClass.LOSSY,
        max_lossy_hops=2,
        max_exact_hops=9,
        beyond_hops=BeyondHops.SUMMARY,
        min_tokens=512,
        max_rounds=6,
        max_moves_per_minute=0.5,
        stale=StaleRule.REFUSE,
        known_freshness=True,
        critical_tags=frozenset({"payment", "legal"}),
        routes=frozenset({"exact", "compact"}),
        worth_it=False,
        tie=0.1,
    )
    assert found.common.roll_out == RollOut(
        RollOutMode.CANARY, 0.05, "autumn", kill_files=(tmp_path / "stop",)
    )


def test_an_agent_says_only_what_differs(tmp_path: Path) -> None:
    """Key by key; kill files add up, and a share does not outlive its mode."""
    found = load_policy_file(write(tmp_path, WHOLE))
    coder = found.for_agent("coder")
    assert coder.rules.minimum_fidelity is FidelityClass.EXACT
    assert coder.rules.min_tokens == 512
    assert coder.roll_out == RollOut(
        RollOutMode.CANARY, 0.5, "autumn", kill_files=(tmp_path / "stop", tmp_path / "stop-coder")
    )
    writer = found.for_agent("the writer")
    assert writer.rules == found.common.rules
    assert (writer.roll_out.mode, writer.roll_out.share) == (RollOutMode.SHADOW, 1.0)
    assert found.for_agent("anybody else") is found.common


def test_an_empty_file_rules_nothing_out(tmp_path: Path) -> None:
    """All defaults: the measuring policy, no rules, rolled out everywhere."""
    found = load_policy_file(write(tmp_path, ""))
    assert (found.policy, found.common, found.agents) == ("measured", AgentPolicy(), {})


def test_nobody_can_switch_back_on_what_is_off_at_the_top() -> None:
    """The kill switch adds up; an agent may be switched off alone."""
    off = {"roll_out": {"kill": True}, "agents": {"a": {"roll_out": {"kill": False}}}}
    assert parse_policy(off).for_agent("a").roll_out.kill
    alone = parse_policy({"agents": {"a": {"roll_out": {"kill": True}}}})
    assert alone.for_agent("a").roll_out.kill
    assert not alone.for_agent("b").roll_out.kill


def test_a_kill_file_may_be_absolute(tmp_path: Path) -> None:
    """A relative one lies beside the policy file, an absolute one where it says."""
    found = parse_policy({"roll_out": {"kill_file": str(tmp_path / "x")}}, folder=Path("/etc"))
    assert found.common.roll_out.kill_files == (tmp_path / "x",)


BAD: list[tuple[str, str, str, str]] = [
    ("polcy = 'measured'", "$.polcy", "unknown key 'polcy'", "did you mean policy?"),
    ("[rules]\nmin_token = 3", "$.rules.min_token", "unknown key", "did you mean min_tokens?"),
    ("[rules]\n'a b' = 3", "$.rules['a b']", "unknown key 'a b'", "known: minimum_fidelity"),
    ("[roll_out]\nkill_files = []", "$.roll_out.kill_files", "unknown", "did you mean kill_file?"),
    ("[agents.a.rule]", "$.agents.a.rule", "unknown key", "did you mean rules?"),
    ("[agents.'x y'.rules]\nq = 1", "$.agents['x y'].rules.q", "unknown key 'q'", "known:"),
    ("policy = 'mesured'", "$.policy", "no policy is called 'mesured'", "did you mean measured?"),
    ("policy = 3", "$.policy", "must be a string", ""),
    ("policy = ''", "$.policy", "must not be empty", ""),
    ("rules = 3", "$.rules", "must be a table", ""),
    ("agents = []", "$.agents", "must be a table", ""),
    ("[agents]\na = 1", "$.agents.a", "must be a table", ""),
    ("[rules]\nmax_lossy_hops = -1", "$.rules.max_lossy_hops", "must be 0 to 1000000, not -1", ""),
    ("[rules]\nmax_exact_hops = 1.0", "$.rules.max_exact_hops", "must be an integer", ""),
    ("[rules]\nmin_tokens = true", "$.rules.min_tokens", "must be an integer", ""),
    ("[rules]\nmax_rounds = 1e9", "$.rules.max_rounds", "must be an integer", ""),
    ("[rules]\nmax_moves_per_minute = nan", "$.rules.max_moves_per_minute", "finite", ""),
    ("[rules]\nmax_moves_per_minute = -1", "$.rules.max_moves_per_minute", "from 0, not -1", ""),
    ("[rules]\ntie = 2", "$.rules.tie", "from 0 to 1, not 2", ""),
    ("[rules]\nworth_it = 1", "$.rules.worth_it", "must be true or false", ""),
    ("[rules]\nstale = 'ignore'", "$.rules.stale", "'ignore' is not known", "known: label"),
    ("[rules]\nstale = ['label']", "$.rules.stale", "must be a string", ""),
    ("[rules]\nroutes = 'exact'", "$.rules.routes", "must be a list of strings", ""),
    ("[rules]\nroutes = ['exact', 3]", "$.rules.routes[1]", "must be a string", ""),
    ("[rules]\nroutes = ['ex act']", "$.rules.routes", "'ex act' is no name", "1 to 64"),
    (
        "[rules]\nroutes = ['compact']\nminimum_fidelity = 'exact'",
        "$.rules.routes",
        "none of the allowed routes is exact",
        "",
    ),
    ("[rules]\nknown_freshness = true", "$.rules.known_freshness", "only labelled", "stale ="),
    ("[roll_out]\nmode = 'canary'", "$.roll_out", "a canary needs its 'share'", "0.05"),
    ("[roll_out]\nmode = 'canry'", "$.roll_out.mode", "not known", "did you mean canary?"),
    ("[roll_out]\nshare = 0.5", "$.roll_out.share", "means nothing in mode 'on'", "canary"),
    ("[roll_out]\nmode='canary'\nshare=1.01", "$.roll_out.share", "from 0 to 1, not 1.01", ""),
    ("[roll_out]\nmode='shadow'\nshare='all'", "$.roll_out.share", "from 0 to 1", ""),
    ("[roll_out]\nexperiment = ''", "$.roll_out.experiment", "must not be empty", ""),
    ("[roll_out]\nkill = 'yes'", "$.roll_out.kill", "must be true or false", ""),
    ('[roll_out]\nkill_file = "a\\u0000b"', "$.roll_out.kill_file", "NUL", ""),
    ("[agents.a.rules]\ntie = 7", "$.agents.a.rules.tie", "from 0 to 1, not 7", ""),
    (
        "[rules]\nroutes = ['tiny']\n[agents.a.rules]\nminimum_fidelity = 'exact'",
        "$.agents.a.rules.routes",
        "none of the allowed routes is exact",
        "",
    ),
]


@pytest.mark.parametrize(("text", "at", "said", "hint"), BAD)
def test_what_cannot_be_meant_is_named_with_its_path(
    tmp_path: Path, text: str, at: str, said: str, hint: str
) -> None:
    """File, path, sentence and, where something else may have been meant, a hint."""
    with pytest.raises(SettingsError) as caught:
        load_policy_file(write(tmp_path, text))
    error = caught.value
    assert error.at == at
    assert error.sentence.startswith("policy.toml: ")
    assert said in error.sentence
    assert hint in error.hint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[rules", "policy.toml is not TOML"),
        (b"a = " + b"[" * 5000, "policy.toml is not TOML"),
        (b"policy = '\xff'", "is not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), f"larger than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_what_is_no_policy_file_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """Each with its own sentence."""
    path = tmp_path / "policy.toml"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=said):
        load_policy_file(path)


@pytest.mark.parametrize("name", ["absent.toml", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_settings_error(tmp_path: Path, name: str) -> None:
    """Absent, a folder, or a name that no file can have."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load_policy_file(f"{tmp_path}/{name}")


def test_too_many_agents_are_refused() -> None:
    """The limit is named."""
    with pytest.raises(SettingsError, match="more than 1024 agents"):
        parse_policy({"agents": {f"a{n}": {} for n in range(1025)}})


def test_a_byte_order_mark_and_line_ends_do_no_harm(tmp_path: Path) -> None:
    """Files come from any editor."""
    path = tmp_path / "policy.toml"
    path.write_bytes(b"\xef\xbb\xbf[rules]\r\nmin_tokens = 7\r\n")
    assert load_policy_file(path).common.rules.min_tokens == 7


def _tables() -> st.SearchStrategy[Any]:
    keys = st.sampled_from(
        ["policy", "rules", "roll_out", "agents", "mode", "share", "kill", "routes", "tie", "a b"]
    )
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    return st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


@given(value=_tables())
def test_any_table_is_a_policy_or_a_settings_error(value: Any) -> None:
    """Nothing else is raised, and every complaint has a place."""
    try:
        parse_policy(value)
    except SettingsError as error:
        assert error.at.startswith("$")


def test_reading_a_policy_loads_no_policy() -> None:
    """Names are compared; a third party's module is imported when it is asked to decide."""
    register_policy("not-here-now", "no_such_module_anywhere:Policy")
    assert parse_policy({"policy": "not-here-now"}).policy == "not-here-now"
