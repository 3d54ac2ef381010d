"""URLs of stores: parsing, options, and what open_store refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton import stores
from kvbaton.errors import InputError, StoreError, UnknownScheme
from kvbaton.stores import (
    DirectoryStore,
    MemoryStore,
    StoreURL,
    open_store,
    parse_size,
    register_store,
    store_schemes,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("1500", 1500),
        ("2GB", 2_000_000_000),
        ("2gb", 2_000_000_000),
        ("2G", 2_000_000_000),
        ("2GiB", 2_147_483_648),
        ("1.5 KB", 1500),
        ("1.5kib", 1536),
        ("7B", 7),
        ("1TB", 10**12),
    ],
)
def test_sizes(text, size_bytes):
    """Sizes are bytes, powers of 1000, or with an i powers of 1024."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "0.4", "1XB", "1e9", "1iB", "٣GB", "1 2"])
def test_what_is_no_size_is_refused(text):
    """Anything else, and what is not positive, raises InputError."""
    with pytest.raises(InputError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("dir:///a/b", StoreURL("dir", "/a/b")),
        ("DIR:///a%20b", StoreURL("dir", "/a b")),
        ("dir:///a?max_bytes=2GB&x=", StoreURL("dir", "/a", (("max_bytes", "2GB"), ("x", "")))),
        ("fsspec+memory://a/b", StoreURL("fsspec+memory", "a/b")),
        ("/a/b#c", StoreURL("dir", "/a/b#c")),
    ],
)
def test_parsing(text, parsed):
    """A URL is a scheme in lower case, a decoded location and options in order."""
    assert StoreURL.parse(text) == parsed


def test_plain_paths(tmp_path, monkeypatch):
    """Relative paths, paths from home and path objects are absolute directory URLs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert StoreURL.parse("x/y") == StoreURL("dir", f"{tmp_path}/x/y")
    assert StoreURL.parse("~/x") == StoreURL("dir", "/home/somebody/x")
    assert StoreURL.parse(tmp_path) == StoreURL("dir", str(tmp_path))


_OPTIONS = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=5)), unique_by=lambda p: p[0]
)


@given(
    st.from_regex(r"[a-z][a-z0-9+.-]{0,8}", fullmatch=True),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    _OPTIONS,
)
def test_printing_and_parsing_are_inverse(scheme, location, options):
    """Any parts survive the way into a URL and back."""
    url = StoreURL(scheme, location, tuple(options))
    assert StoreURL.parse(str(url)) == url


@pytest.mark.parametrize("text", ["", "dir:///a\0b", "dir:///a?x", "dir:///a?x=1&x=2", "/a?x=1"])
def test_malformed_urls_are_refused(text):
    """An empty URL, a NUL, a malformed or doubled option, options on a plain path: InputError."""
    with pytest.raises(InputError):
        StoreURL.parse(text)


@pytest.mark.parametrize(
    "url",
    [
        "dir://relative",
        "dir:///store?maxbytes=1",
        "dir:///store?max_bytes=much",
        "dir:///store?sync=never",
        "memory://",
        "memory://a?sync=all",
        "fsspec+memory://",
        "fsspec+memory://a?max_bytes=1",
    ],
)
def test_what_a_store_does_not_understand_is_refused(url):
    """Locations and options that the store does not know raise InputError, not a guess."""
    with pytest.raises(InputError):
        open_store(url)


@pytest.mark.parametrize("url", ["nowhere://x", "fsspec+nowhere://x", "nowhere+file:///x"])
def test_unknown_schemes_are_typed(url):
    """A scheme that nobody serves raises UnknownScheme with a hint."""
    with pytest.raises(UnknownScheme) as caught:
        open_store(url)
    assert caught.value.hint


def test_a_missing_package_is_named(monkeypatch):
    """A scheme whose package is not installed says which to install."""
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UnknownScheme) as caught:
        open_store("s3://bucket/folder")
    assert "s3fs" in caught.value.hint


def test_open_store(tmp_path):
    """URLs, plain paths and path objects open the store of their scheme."""
    assert isinstance(open_store("memory://test-open-store"), MemoryStore)
    for url in (f"dir://{tmp_path}/a", f"{tmp_path}/b", tmp_path / "c"):
        assert isinstance(open_store(url), DirectoryStore)
    assert open_store(f"dir://{tmp_path}/a?max_bytes=1KB").free_bytes() == 1000


def test_register_store():
    """A registered scheme opens, and a class that is no store is refused when it is used."""
    register_store("test-registered", "kvbaton.stores.memory:MemoryStore")
    register_store("test-nonsense", "collections:OrderedDict")
    assert "test-registered" in store_schemes()
    assert isinstance(open_store("test-registered://x"), MemoryStore)
    with pytest.raises(StoreError, match="is not a store"):
        open_store("test-nonsense://x")


def test_public_names_exist():
    """Every name of __all__ can be had, and the list is sorted."""
    assert stores.__all__ == sorted(stores.__all__)
    assert all(hasattr(stores, name) for name in stores.__all__)
    with pytest.raises(AttributeError):
        _ = stores.NoSuchName
