"""Settings: defaults, checks, and the page that lists them."""

import re
from pathlib import Path

import pytest

from kvbaton.errors import SettingsError
from kvbaton.settings import VARIABLES, Settings, from_environment

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "settings.md"


def test_an_empty_environment_gives_the_defaults() -> None:
    """Without any variable there is a domain `local`, a finite deadline and a store under data."""
    settings = from_environment({})
    assert (settings.domain, settings.deadline_s, settings.receipts) == ("local", 60.0, None)
    assert not settings.offline
    assert settings.store == f"dir://{settings.data_dir}/store"
    assert settings.data_dir.name == settings.cache_dir.name == "kvbaton"


def test_every_variable_reaches_its_setting() -> None:
    """Each variable sets the field that is named for it."""
    settings = from_environment(
        {
            "KVBATON_DATA_DIR": "/d",
            "KVBATON_CACHE_DIR": "/c",
            "KVBATON_STORE": "memory://x",
            "KVBATON_DOMAIN": "team-1",
            "KVBATON_DEADLINE_S": "2.5",
            "KVBATON_RECEIPTS": "/r.jsonl",
            "KVBATON_KEY_PASSPHRASE_FILE": "/p",
            "HF_HUB_OFFLINE": "YES",
            "PATH": "/bin",
        }
    )
    assert settings == Settings(
        data_dir=Path("/d"),
        cache_dir=Path("/c"),
        store="memory://x",
        domain="team-1",
        deadline_s=2.5,
        receipts=Path("/r.jsonl"),
        key_passphrase_file=Path("/p"),
        offline=True,
    )


def test_the_default_store_follows_the_data_folder() -> None:
    """Moving the data folder moves the default store with it."""
    assert from_environment({"KVBATON_DATA_DIR": "/d"}).store == "dir:///d/store"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVBATON_DATA_DIR", "relative/path"),
        ("KVBATON_STORE", "just-a-name"),
        ("KVBATON_DOMAIN", "../other"),
        ("KVBATON_DOMAIN", "Upper"),
        ("KVBATON_DOMAIN", "x" * 65),
        ("KVBATON_DEADLINE_S", "0"),
        ("KVBATON_DEADLINE_S", "-1"),
        ("KVBATON_DEADLINE_S", "inf"),
        ("KVBATON_DEADLINE_S", "nan"),
        ("KVBATON_DEADLINE_S", "soon"),
        ("HF_HUB_OFFLINE", "maybe"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_variable(name: str, value: str) -> None:
    """A bad value is never replaced by a default; the error says where and what."""
    with pytest.raises(SettingsError) as caught:
        from_environment({name: value})
    assert caught.value.at == name
    assert repr(value) in caught.value.sentence


def test_a_variable_that_does_not_exist_is_an_error_with_a_suggestion() -> None:
    """A misspelt variable is not ignored."""
    with pytest.raises(SettingsError, match="did you mean KVBATON_DEADLINE_S"):
        from_environment({"KVBATON_DEADLINE": "5"})


def test_an_empty_variable_counts_as_not_set() -> None:
    """Emptying a variable is the same as removing it."""
    assert from_environment({"KVBATON_DEADLINE_S": "", "HF_HUB_OFFLINE": ""}) == Settings()


def test_the_page_lists_exactly_the_variables() -> None:
    """`docs/guides/settings.md` has one row per variable, in the same order, and no other."""
    rows = re.findall(r"^\| `([A-Z_]+)`", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(VARIABLES)
    assert len([name for name in rows if name.startswith("KVBATON_")]) <= 9
