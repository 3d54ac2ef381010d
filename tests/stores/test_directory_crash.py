"""FAULTS C2 and C3, and writers in several processes: real processes, really killed."""

import pytest
from tests.stores.child import child, kill, wait_until_stopped
from tests.stores.disk import files_below, segment, verify_clean

from kvbaton.errors import NotFound
from kvbaton.stores import DirectoryStore, Key, Kind
from kvbaton.testing.stores import pattern

SIZE = 3_000_017

STOP_IN_THE_MIDDLE = """
real = os.writev

def half(descriptor, views):
    written = real(descriptor, [views[0][: views[0].nbytes // 2 + 1]])
    stop()
    return written

directory_files.os.writev = half
DirectoryStore(sys.argv[1]).put(segment(1), [bytes(int(sys.argv[2]))])
"""

STOP_BEFORE_THE_RENAME = """
directory.os.rename = lambda *_, **__: stop()
DirectoryStore(sys.argv[1]).put(segment(1), [bytes(int(sys.argv[2]))])
"""

STOP_BEFORE_THE_MANIFEST = """
store = DirectoryStore(sys.argv[1])
store.put(segment(1), [bytes(int(sys.argv[2]))])
stop()
store.put(Key(Kind.BATON, f"{2:064x}"), [b"manifest"])
"""

WRITE_ALL = """
import random
store = DirectoryStore(sys.argv[1], max_bytes=int(sys.argv[2]))
order = list(range(60))
random.Random(int(sys.argv[3])).shuffle(order)
stop()
for number in order:
    store.put(segment(number), [bytes([number]) * 500, bytes([number]) * 500])
    if number % 3 == 0:
        store.delete(segment(number))
"""


@pytest.mark.parametrize("script", [STOP_IN_THE_MIDDLE, STOP_BEFORE_THE_RENAME])
def test_killed_while_writing(root, script):
    """After a SIGKILL nothing is visible, the temporary goes, and the address can be written."""
    store = DirectoryStore(root)
    with child(script, root, SIZE) as writer:
        wait_until_stopped(writer)
        assert len(files_below(root / "tmp")) == 1
        kill(writer)
    assert not store.exists(segment(1))
    with pytest.raises(NotFound):
        store.open(segment(1))
    assert store.put(segment(1), [pattern(SIZE)]) == SIZE
    assert store.get(segment(1), limit_bytes=SIZE) == pattern(SIZE)
    verify_clean(root)


def test_what_a_killed_writer_set_aside_is_given_back(root):
    """Room of a dead writer does not count against the limit: its address fits at once."""
    DirectoryStore(root, max_bytes=SIZE)
    with child(STOP_IN_THE_MIDDLE, root, SIZE) as writer:
        wait_until_stopped(writer)
        kill(writer)
    store = DirectoryStore(root, max_bytes=SIZE)
    assert store.put(segment(1), [bytes(SIZE)]) == SIZE
    assert store.used_bytes() == SIZE
    verify_clean(root)


def test_a_living_writer_keeps_its_temporary(root):
    """Other writers do not take a file from a process that is still writing it."""
    store = DirectoryStore(root)
    with child(STOP_IN_THE_MIDDLE, root, SIZE) as writer:
        wait_until_stopped(writer)
        store.put(segment(2), [b"another"])
        assert len(files_below(root / "tmp")) == 1
        assert store.used_bytes() == SIZE + len(b"another")
        writer.communicate()
        assert writer.returncode == 0
    assert store.get(segment(1), limit_bytes=SIZE) == bytes(SIZE)
    verify_clean(root)


def test_killed_between_segments_and_manifest(root):
    """Segments without a manifest are segments; the baton is absent (C3)."""
    with child(STOP_BEFORE_THE_MANIFEST, root, 1000) as writer:
        wait_until_stopped(writer)
        kill(writer)
    store = DirectoryStore(root)
    assert store.get(segment(1), limit_bytes=1000) == bytes(1000)
    with pytest.raises(NotFound):
        store.open(Key(Kind.BATON, f"{2:064x}"))
    verify_clean(root)


def test_writers_in_several_processes(root):
    """Processes that put, evict and delete the same keys leave whole objects within the limit."""
    limit = 20_000
    with (
        child(WRITE_ALL, root, limit, 1) as first,
        child(WRITE_ALL, root, limit, 2) as second,
        child(WRITE_ALL, root, limit, 3) as third,
    ):
        for writer in (first, second, third):
            wait_until_stopped(writer)
        for writer in (first, second, third):
            writer.stdin.close()
        assert [writer.wait() for writer in (first, second, third)] == [0, 0, 0]
    store = DirectoryStore(root, max_bytes=limit)
    entries = list(store.list(Kind.SEGMENT))
    assert 0 < len(entries) <= limit // 1000
    for entry in entries:
        expected = bytes([int(entry.key.name, 16)]) * 1000
        assert store.get(entry.key, limit_bytes=1000) == expected
    verify_clean(root)


KERNEL_LIMIT = """
import resource, signal
from kvbaton.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = DirectoryStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put(segment(1), [bytes(70_000), bytes(70_000)])
except StoreError as error:
    print(type(error).__name__, error.sentence, flush=True)
store.put(segment(2), [b"small"])
"""


def test_the_kernel_stops_a_write_half_way(root):
    """A write that the kernel cuts short and then refuses (file size limit) is typed and undone."""
    with child(KERNEL_LIMIT, root) as writer:
        output, _ = writer.communicate()
        assert writer.returncode == 0
    assert output.startswith(b"StoreError segments/000")
    assert output.rstrip().endswith(b"File too large")
    assert files_below(root) == [f"segments/00/{2:064x}"]
    verify_clean(root)
