"""Looking for many short runs of bytes at once finds what a plain search finds."""

from hypothesis import given
from hypothesis import strategies as st

from kvbaton.stores.windows import WINDOW_BYTES, Windows, chunks_of, files_below, window_in

_SHORT = st.binary(min_size=16, max_size=WINDOW_BYTES)


@given(
    windows=st.lists(_SHORT, max_size=6),
    planted=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=90)), max_size=5),
    sizes=st.lists(st.integers(1, 100), max_size=12),
)
def test_it_finds_what_a_plain_search_finds(windows, planted, sizes):
    """At any offset, however the data is cut into chunks."""
    data = b"".join((windows[i] if i < len(windows) else b"") + between for i, between in planted)
    chunks, rest = [], data
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    found = Windows(windows).found_in([*chunks, rest])
    assert found == {window for window in windows if window in data}


def test_windows_that_begin_alike_are_told_apart():
    """Equal first bytes lead to the right ones only."""
    one, other = b"same-beginning-1" * 4, b"same-beginning-1" * 3 + b"another end here"
    assert Windows([one, other]).found_in([b"x" + other]) == {other}


def test_padding_is_no_window():
    """What stands everywhere would be found everywhere."""
    assert window_in(bytes(1000)) is None
    assert window_in(b"short") is None
    found = window_in(bytes(500) + bytes(range(200)) + bytes(20))
    assert found is not None and len(found) == WINDOW_BYTES and len(set(found)) >= 8
    assert window_in(bytes(range(20))) == bytes(range(20))


def test_links_are_not_followed(tmp_path):
    """Files below a folder, and nothing that a link leads to."""
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "file").write_bytes(b"inside")
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    (path,) = files_below(tmp_path / "store")
    assert list(chunks_of(path)) == [b"inside"]
    assert list(chunks_of(tmp_path / "gone")) == []
