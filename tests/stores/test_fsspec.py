"""What the fsspec store promises beyond the suite: foreign errors, privacy, leftovers."""

import errno
import itertools
import time
from datetime import UTC, datetime

import pytest
from tests.stores.disk import files_below, segment

from kvbaton.errors import NotFound, StoreError, StoreFull, StoreTimeout
from kvbaton.stores import FsspecStore, Kind

_NUMBERS = itertools.count()


@pytest.fixture
def local(tmp_path):
    """A store on the local disk, seen through fsspec."""
    return FsspecStore(f"fsspec+file://{tmp_path}/store")


@pytest.fixture
def memory():
    """A store in fsspec's own memory."""
    return FsspecStore(f"fsspec+memory://test-fsspec-{next(_NUMBERS)}")


class ClientError(Exception):
    """An error class of a client library, outside every tree."""


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (FileNotFoundError("/secret"), NotFound),
        (TimeoutError("/secret"), StoreTimeout),
        (OSError(errno.ENOSPC, "/secret"), StoreFull),
        (OSError(errno.EDQUOT, "/secret"), StoreFull),
        (PermissionError("/secret"), StoreError),
        (ClientError("key=secret"), StoreError),
        (ValueError("secret"), StoreError),
    ],
)
@pytest.mark.parametrize("method", ["info", "pipe_file", "cat_file", "rm_file", "find"])
def test_foreign_errors_are_mapped(memory, monkeypatch, foreign, expected, method):
    """Whatever a file system raises arrives as a store error that quotes nothing of it."""
    memory.put(segment(1), [b"first"])

    def fail(*_, **__):
        raise foreign

    calls = {
        "info": lambda: memory.open(segment(1)),
        "pipe_file": lambda: memory.put(segment(2), [b"second"]),
        "cat_file": lambda: memory.get(segment(1), limit_bytes=5),
        "rm_file": lambda: memory.delete(segment(1)),
        "find": lambda: list(memory.list(Kind.SEGMENT)),
    }
    monkeypatch.setattr(type(memory._fs), method, fail)
    if method == "rm_file" and expected is NotFound:
        assert calls[method]() is False
        return
    with pytest.raises(StoreError) as caught:
        calls[method]()
    assert type(caught.value) is expected
    assert "secret" not in str(caught.value)


def test_a_failed_put_leaves_nothing(local, tmp_path, monkeypatch):
    """When the move fails, neither the object nor the temporary file is there."""

    def fail(*_, **__):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(type(local._fs), "mv", fail)
        with pytest.raises(StoreError):
            local.put(segment(1), [b"first"])
    assert files_below(tmp_path) == []
    assert local.put(segment(1), [b"first"]) == 5


def test_a_short_answer_is_typed(memory, monkeypatch):
    """A file system that returns fewer bytes than it was asked for raises StoreError."""
    memory.put(segment(1), [b"first"])
    monkeypatch.setattr(type(memory._fs), "cat_file", lambda *_, **__: b"fi")
    with pytest.raises(StoreError, match="gave 2 bytes, not 5"):
        memory.get(segment(1), limit_bytes=5)


def test_local_files_are_private(local, tmp_path):
    """On the local disk files are 0600 and folders that were made are 0700."""
    local.put(segment(1), [b"secret"])
    paths = list((tmp_path / "store" / "segments").rglob("*"))
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(paths)] == ["0o700", "0o600"]


def test_a_symbolic_link_is_refused(local, tmp_path):
    """A link in the place of an object is not followed."""
    local.put(segment(1), [b"first"])
    folder = tmp_path / "store" / "segments" / "00"
    (folder / segment(2).name).symlink_to(folder / segment(1).name)
    with pytest.raises(StoreError, match="symbolic link"):
        local.open(segment(2))


def test_old_leftovers_are_removed(local, tmp_path):
    """Opening a store removes temporary files older than a day, and no younger one."""
    local.put(segment(1), [b"first"])
    folder = tmp_path / "store" / "tmp"
    now_s = int(time.time())
    for name in (f"{now_s - 90_000}-old", f"{now_s - 60}-young", "foreign"):
        (folder / name).write_bytes(b"half")
    FsspecStore(local.url)
    assert files_below(folder) == [f"{now_s - 60}-young", "foreign"]


def test_what_fsspec_calls_memory_is_not_ours(memory):
    """memory:// is this package's store, fsspec+memory:// is fsspec's."""
    assert memory.url.startswith("fsspec+memory://")
    assert type(memory._fs).__name__ == "MemoryFileSystem"


@pytest.mark.parametrize(
    ("info", "seconds"),
    [
        ({"mtime": 12.5}, 12.5),
        ({"LastModified": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}, 60.0),
        ({"updated": "1970-01-01T01:00:00.500Z"}, 3600.5),
        ({"created": datetime(1970, 1, 2, tzinfo=UTC), "mtime": 1}, 1.0),
        ({}, 0.0),
    ],
)
def test_ages_of_every_protocol(memory, monkeypatch, info, seconds):
    """Times of writing are understood as the protocols give them, or everything is equally old."""
    name = segment(1).name
    found = {f"/a/{name}": {"size": 3, "type": "file", **info}}
    monkeypatch.setattr(type(memory._fs), "find", lambda *_, **__: found)
    assert [entry.modified_s for entry in memory.list(Kind.SEGMENT)] == [seconds]
