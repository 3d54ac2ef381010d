"""The registry: sorted, lazy, helpful, and never silently replaced."""

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvbaton.errors import InputError, UnknownScheme
from kvbaton.registry import Provider, Registry

BUILTIN = {
    "ordered": Provider("collections:OrderedDict"),
    "missing": Provider("no_such_module_anywhere:Thing", "pip install thing"),
    "absent": Provider("collections:NoSuchName", "pip install --upgrade thing"),
}


def point(name, target, source):
    """An entry point as a distribution declares it."""
    return SimpleNamespace(name=name, value=target, dist=SimpleNamespace(name=source))


@pytest.fixture
def installed(monkeypatch):
    """Entry points that other distributions declare, for a test to fill; counts the look-ups."""
    points = []
    points_asked = []

    def entry_points(*, group):
        points_asked.append(group)
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return SimpleNamespace(points=points, asked=points_asked)


@pytest.fixture
def registry(installed):
    """A registry with three built-in names."""
    return Registry("thing", BUILTIN, group="kvbaton.things", unknown=UnknownScheme)


def test_names_are_sorted(registry, installed):
    """Built-in, registered and declared names are listed together, in order."""
    installed.points.append(point("zebra", "collections:Counter", "zoo"))
    registry.register("apple", "collections:deque")
    assert registry.names() == ("absent", "apple", "missing", "ordered", "zebra")


def test_a_built_in_name_costs_no_look_up(registry, installed):
    """Loading what is built in does not search the installed distributions."""
    assert registry.load("ordered").__name__ == "OrderedDict"
    assert installed.asked == []


def test_a_declared_name_is_loaded(registry, installed):
    """A name of another distribution is found through its entry point, looked up once."""
    installed.points.append(point("counter", "collections:Counter", "zoo"))
    assert registry.load("counter").__name__ == "Counter"
    assert registry.provider("counter") == Provider("collections:Counter", "provided by zoo", "zoo")
    assert installed.asked == ["kvbaton.things"]


def test_nothing_is_imported_before_it_is_loaded():
    """Listing the stores and asking where they are imports none of them."""
    script = (
        "import sys, kvbaton.stores as s; s.store_schemes();"
        "bad = {'kvbaton.stores.fsspec', 'kvbaton.stores.directory', 'fsspec', 'torch'};"
        "sys.exit(repr(bad & set(sys.modules)) if bad & set(sys.modules) else 0)"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("missing", "pip install thing"), ("absent", "pip install --upgrade thing")],
)
def test_what_cannot_be_imported_says_what_to_install(registry, name, hint):
    """A module or a name in it that is not there raises the registry's error with the hint."""
    with pytest.raises(UnknownScheme) as caught:
        registry.load(name)
    assert caught.value.hint == hint
    assert f'"{name}"' in caught.value.sentence
    assert isinstance(caught.value.__cause__, ImportError | AttributeError)


def test_an_unknown_name_lists_the_known(registry):
    """Nobody's name raises the registry's error, and the hint has every name."""
    with pytest.raises(UnknownScheme) as caught:
        registry.load("nothing")
    assert caught.value.hint == "known: absent, missing, ordered"


def test_a_taken_name_cannot_be_registered(registry, installed):
    """A name that is built in, registered or declared is not given to another class."""
    installed.points.append(point("counter", "collections:Counter", "zoo"))
    registry.register("mine", "collections:deque")
    for name in ("ordered", "mine", "counter"):
        with pytest.raises(InputError, match="already"):
            registry.register(name, "collections:ChainMap")
    assert registry.load("mine").__name__ == "deque"


def test_registering_the_same_twice_is_harmless(registry):
    """The same name for the same class may be registered again."""
    registry.register("mine", "collections:deque")
    registry.register("mine", "collections:deque")
    assert registry.load("mine").__name__ == "deque"


def test_an_entry_point_cannot_take_a_built_in_name(registry, installed):
    """A declared name that is built in stays what it was, with a warning that names both."""
    installed.points.append(point("ordered", "evil:Thing", "zoo"))
    with pytest.warns(RuntimeWarning, match="zoo claims the thing"):
        assert registry.names() == ("absent", "missing", "ordered")
    assert registry.load("ordered").__name__ == "OrderedDict"


def test_two_claims_of_one_name_are_refused(registry, installed):
    """A name that two distributions declare is refused, both named; other names still work."""
    installed.points.append(point("twice", "collections:Counter", "zoo"))
    installed.points.append(point("twice", "collections:deque", "farm"))
    installed.points.append(point("once", "collections:deque", "farm"))
    with pytest.raises(InputError, match=r"zoo .* and farm"):
        registry.load("twice")
    assert registry.load("once").__name__ == "deque"


@pytest.mark.parametrize("target", ["", "module", "module:", ":Class"])
def test_a_malformed_target_is_refused(registry, target):
    """A target that is not module:Class is refused when it is registered."""
    with pytest.raises(InputError, match="not a registry target"):
        registry.register("mine", target)
