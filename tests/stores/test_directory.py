"""What a directory store promises beyond the suite: privacy, limits, eviction, order."""

import os
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.stores.disk import files_below, segment, verify_clean
from tests.stores.syscalls import open_descriptors

from kvbaton.errors import InputError, NotFound, StoreError, StoreFull
from kvbaton.stores import DirectoryStore, Key, Kind, directory, open_store
from kvbaton.testing.stores import pattern


@contextmanager
def umask(mask):
    """The process's umask, for a block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def names(store, kind=Kind.SEGMENT):
    """Numbers of the objects, oldest first."""
    return [int(entry.key.name, 16) for entry in store.list(kind)]


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o277])
def test_modes_do_not_depend_on_the_umask(root, mask):
    """Every folder is 0700 and every file 0600, whatever the umask."""
    with umask(mask):
        store = DirectoryStore(root, max_bytes=1000)
        for kind in Kind:
            store.put(Key(kind, f"{1:064x}"), [b"secret"])
    paths = list(root.rglob("*"))
    assert len(paths) == len(Kind) * 3 + 3
    assert {mode(path) for path in [root, *paths] if path.is_dir()} == {0o700}
    assert {mode(path) for path in paths if path.is_file()} == {0o600}


def test_a_temporary_file_is_private_while_it_is_written(root, monkeypatch):
    """Others cannot read an object before it is complete either."""
    seen = []

    def write(descriptor, views):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(directory, "write_all", write)
    with umask(0):
        DirectoryStore(root).put(segment(1), [b"secret"])
    assert seen == [0o600]


def test_lax_folders_are_closed(root):
    """A store whose folders were opened to others is closed again when it is opened."""
    DirectoryStore(root)
    (root / "segments").chmod(0o755)
    DirectoryStore(root)
    assert mode(root / "segments") == 0o700


def test_folders_of_somebody_else_are_refused(root, monkeypatch):
    """A folder that another user made in the store's place is not written to."""
    DirectoryStore(root)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 12345)
    with pytest.raises(StoreError, match="not permitted"):
        DirectoryStore(root)


def test_a_symbolic_link_in_the_place_of_an_object_is_refused(store, root, tmp_path):
    """A planted link is neither read nor written through, and can be deleted."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"not yours")
    store.put(segment(1), [b"makes the folder"])
    link = root / "segments" / "00" / segment(2).name
    link.symlink_to(outside)
    for attempt in (store.open, store.exists, lambda key: store.put(key, [b"new"])):
        with pytest.raises(StoreError, match="symbolic link"):
            attempt(segment(2))
    assert names(store) == [1]
    assert store.delete(segment(2)) is True
    assert outside.read_bytes() == b"not yours"
    verify_clean(root)


@pytest.mark.parametrize("place", ["segments", "segments/00", "tmp"])
def test_a_symbolic_link_in_the_place_of_a_folder_is_refused(store, root, tmp_path, place):
    """Nothing is written behind a link that took the place of a folder."""
    store.put(segment(1), [b"first"])
    outside = tmp_path / "outside"
    (root / place).rename(outside)
    (root / place).symlink_to(outside)
    before = files_below(outside)
    with pytest.raises(StoreError, match="symbolic link"):
        store.put(segment(2), [b"second"])
    assert files_below(outside) == before


@pytest.mark.parametrize("make", ["fifo", "folder"])
def test_a_foreign_file_in_the_place_of_an_object_is_refused(store, root, make):
    """A pipe or a folder under an object's name is refused at once, without waiting."""
    store.put(segment(1), [b"makes the folder"])
    path = root / "segments" / "00" / segment(2).name
    os.mkfifo(path) if make == "fifo" else path.mkdir()
    with pytest.raises(StoreError):
        store.open(segment(2))
    with pytest.raises(StoreError):
        store.put(segment(2), [b"new"])
    assert names(store) == [1]


def test_foreign_files_are_not_listed(store, root):
    """Files that are no objects are neither listed nor evicted nor touched."""
    store.put(segment(1), [b"first"])
    for place in ("segments/readme", "segments/00/notes.txt", f"segments/ff/{1:064x}", "tmp/x"):
        path = root / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"foreign")
    assert names(store) == [1]
    limited = DirectoryStore(root, max_bytes=10)
    assert limited.put(segment(2), [bytes(10)]) == 10
    assert (root / "segments" / "readme").read_bytes() == b"foreign"
    assert (root / "tmp" / "x").exists()


def test_a_path_that_is_a_file_is_refused(tmp_path):
    """A store cannot be opened where a file is."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        DirectoryStore(tmp_path / "file")
    with pytest.raises(StoreError):
        DirectoryStore(tmp_path / "file" / "below")


def test_a_store_that_was_removed(store, root):
    """When the directory is gone, reads find nothing and a put fails typed."""
    store.put(segment(1), [b"first"])
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(NotFound):
        store.open(segment(1))
    assert not store.exists(segment(1))
    with pytest.raises(StoreError) as caught:
        store.put(segment(1), [b"first"])
    assert not isinstance(caught.value, NotFound)


def test_eviction_is_oldest_first(root):
    """A put that passes the limit removes the objects that were not used for longest, no more."""
    store = DirectoryStore(root, max_bytes=50)
    for number in range(1, 6):
        store.put(segment(number), [bytes(10)])
    store.open(segment(1)).close()
    store.put(segment(2), [bytes(10)])
    assert names(store) == [3, 4, 5, 1, 2]
    store.put(segment(6), [bytes(15)])
    assert names(store) == [5, 1, 2, 6]
    assert store.used_bytes() == 45
    store.put(segment(7), [bytes(50)])
    assert names(store) == [7]
    verify_clean(root)


def test_looking_does_not_renew(root):
    """Listing and asking whether an object exists leave its age alone."""
    store = DirectoryStore(root, max_bytes=20)
    store.put(segment(1), [bytes(10)])
    store.put(segment(2), [bytes(10)])
    assert store.exists(segment(1))
    assert names(store) == [1, 2]
    store.put(segment(3), [bytes(10)])
    assert names(store) == [2, 3]


def test_batons_and_transcripts_give_way_last(root):
    """Segments and prefix records go first, by age; manifests only when nothing else is left."""
    store = DirectoryStore(root, max_bytes=50)
    for number, kind in enumerate([Kind.BATON, Kind.TRANSCRIPT, Kind.PREFIX, Kind.SEGMENT]):
        store.put(Key(kind, f"{number:064x}"), [bytes(10)])
    store.put(segment(9), [bytes(20)])
    assert [names(store, kind) for kind in Kind] == [[3, 9], [0], [1], [], []]
    store.put(segment(10), [bytes(40)])
    assert [names(store, kind) for kind in Kind] == [[10], [], [1], [], []]


def test_a_use_after_the_scan_protects(root):
    """An object used after the candidates were counted is not the next to go."""
    store = DirectoryStore(root, max_bytes=40)
    for number in range(1, 5):
        store.put(segment(number), [bytes(10)])
    store.put(segment(5), [bytes(10)])
    store.open(segment(2)).close()
    store.put(segment(6), [bytes(10)])
    assert names(store) == [4, 5, 2, 6]


def test_a_put_under_the_limit_scans_nothing(root, monkeypatch):
    """Neither many small puts nor a large one look at the objects that are there."""
    store = DirectoryStore(root, max_bytes=10_000_000)
    monkeypatch.setattr(os, "scandir", _only_tmp(root))
    for number in range(20):
        store.put(segment(number), [bytes(100)])
    assert store.put(segment(99), [pattern(6_000_000)]) == 6_000_000
    assert store.used_bytes() == 6_002_000


def _only_tmp(root):
    real = os.scandir

    def scandir(descriptor):
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == root / "tmp"
        return real(descriptor)

    return scandir


def test_eviction_scans_once_for_many_puts(root, monkeypatch):
    """The candidates of one scan serve until they are used up."""
    store = DirectoryStore(root, max_bytes=1000)
    for number in range(100):
        store.put(segment(number), [bytes(10)])
    scans = []
    real = store._account._scan
    monkeypatch.setattr(store._account, "_scan", lambda: scans.append(1) or real())
    for number in range(100, 180):
        store.put(segment(number), [bytes(10)])
    assert len(scans) == 1
    assert names(store) == list(range(80, 180))


def test_what_exceeds_the_limit_evicts_nothing(root):
    """An object larger than the whole store is refused before anything gives way."""
    store = DirectoryStore(root, max_bytes=50)
    store.put(segment(1), [bytes(50)])
    with pytest.raises(StoreFull, match="51 bytes are needed, the store may hold 50"):
        store.put(segment(2), [bytes(51)])
    assert names(store) == [1]
    verify_clean(root)


def test_free_space_is_checked_before_writing(store, root, monkeypatch):
    """A put that the disk cannot hold fails by its size and names what is needed and free."""
    tight = SimpleNamespace(f_bavail=2, f_frsize=512, f_blocks=100)
    monkeypatch.setattr(os, "statvfs", lambda _: tight)
    monkeypatch.setattr(directory, "write_all", lambda *_: pytest.fail("it was written"))
    with pytest.raises(StoreFull, match="1025 bytes are needed, 1024 are free"):
        store.put(segment(1), [bytes(1025)])
    assert store.free_bytes() == 1024
    verify_clean(root)


def test_free_bytes_is_the_smaller_of_disk_and_limit(root, monkeypatch):
    """Limit and disk both bound what can be put; a disk without a size bounds nothing."""
    store = DirectoryStore(root, max_bytes=1000)
    store.put(segment(1), [bytes(300)])
    disk = SimpleNamespace(f_bavail=1, f_frsize=512, f_blocks=100)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    assert store.free_bytes() == 512
    disk.f_bavail = 10
    assert store.free_bytes() == 700
    disk.f_blocks = 0
    assert store.free_bytes() == 700
    assert DirectoryStore(root).free_bytes() is None


def test_a_reader_survives_eviction(root):
    """What is open stays readable, byte for byte, when its object gives way."""
    data = pattern(100_000)
    store = DirectoryStore(root, max_bytes=100_000)
    store.put(segment(1), [data])
    with store.open(segment(1)) as reader:
        store.put(segment(2), [bytes(100_000)])
        assert not store.exists(segment(1))
        assert reader.read(0, len(data)) == data


def test_an_object_cut_while_open_is_typed(store, root):
    """A file that shrinks under a reader raises StoreError with the place."""
    store.put(segment(1), [bytes(1000)])
    with store.open(segment(1)) as reader:
        os.truncate(root / "segments" / "00" / segment(1).name, 600)
        with pytest.raises(StoreError, match="ends at byte 600"):
            reader.read(500, 200)


def test_a_closed_reader_is_typed(store):
    """Reading after the close raises StoreError, never another file's bytes."""
    store.put(segment(1), [b"first"])
    reader = store.open(segment(1))
    reader.close()
    with pytest.raises(StoreError, match="was closed"):
        reader.read(0, 5)


def test_closing_waits_for_a_read_in_progress(store, monkeypatch):
    """A close during a read lets the read finish on its own descriptor."""
    store.put(segment(1), [b"first"])
    reader = store.open(segment(1))
    real = os.preadv

    def close_first(descriptor, buffers, offset):
        closing = threading.Thread(target=reader.close)
        closing.start()
        closing.join()
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", close_first)
    assert reader.read(0, 5) == b"first"


def test_no_descriptor_outlives_its_use(root):
    """Stores, puts, lists, failed opens and forgotten readers leave no descriptor open."""
    before = open_descriptors()
    store = DirectoryStore(root, max_bytes=1000)
    for number in range(30):
        store.put(segment(number), [bytes(100)])
        store.open(segment(number))
        store.delete(segment(number // 2))
    list(store.list(Kind.SEGMENT))
    with pytest.raises(NotFound):
        store.open(segment(77))
    assert open_descriptors() == before


def test_a_torn_segment_is_replaced(root):
    """A segment that a power failure cut short is written again by the next put."""
    store = DirectoryStore(root)
    store.put(segment(1), [pattern(1000)])
    os.truncate(root / "segments" / "00" / segment(1).name, 0)
    store = DirectoryStore(root)
    assert store.put(segment(1), [pattern(1000)]) == 1000
    assert store.put(segment(1), [pattern(1000)]) == 0
    assert store.get(segment(1), limit_bytes=1000) == pattern(1000)


@pytest.mark.parametrize("sync", ["batons", "all"])
def test_what_is_flushed(root, monkeypatch, sync):
    """Batons and transcripts are flushed, file before name; segments only on demand."""
    store = DirectoryStore(root, sync=sync)
    flushed = []
    real = os.fsync

    def fsync(descriptor):
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.put(Key(Kind.BATON, f"{1:064x}"), [b"manifest"])
    temporary, above, shard = flushed
    assert temporary.startswith("tmp/8-")
    assert (above, shard) == ("batons", "batons/00")
    flushed.clear()
    store.put(segment(1), [b"segment"])
    assert len(flushed) == (3 if sync == "all" else 0)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff" * 300])
def test_a_damaged_account_is_counted_again(root, damage):
    """Whatever is in the account's file, the limit holds."""
    store = DirectoryStore(root, max_bytes=100)
    store.put(segment(1), [bytes(60)])
    (root / "usage").write_bytes(damage)
    store.put(segment(2), [bytes(30)])
    assert store.used_bytes() == 90
    store.put(segment(3), [bytes(30)])
    assert names(store) == [2, 3]
    verify_clean(root)


def test_an_account_of_an_earlier_boot_is_counted_again(root):
    """The count is not synced, so after a restart of the machine it is not believed."""
    DirectoryStore(root).put(segment(1), [bytes(60)])
    (root / "usage").write_bytes(b"%s %020d\n" % (b"0" * 36, 7))
    assert DirectoryStore(root).used_bytes() == 60


def test_the_url_carries_the_options(tmp_path):
    """A URL opens the same directory with the same limit, also where the path needs quoting."""
    path = tmp_path / os.fsdecode(b"a b?c#d%20\xff")
    store = DirectoryStore(path, max_bytes=2000, sync="all")
    store.put(segment(1), [b"first"])
    other = open_store(store.url)
    assert other.url == store.url
    assert store.url.endswith("a%20b%3Fc%23d%2520%FF?max_bytes=2000&sync=all")
    assert names(other) == [1]
    with pytest.raises(StoreFull):
        other.put(segment(2), [bytes(2001)])


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_bytes": -1}, {"sync": "never"}])
def test_bad_options_are_refused(root, options):
    """Options with impossible values raise InputError and make nothing."""
    with pytest.raises(InputError):
        DirectoryStore(root, **options)
    assert not root.exists()


def test_a_symbolic_link_to_the_store_is_the_owners_choice(tmp_path):
    """The store's own path may be a link: only what is inside is guarded."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    DirectoryStore(tmp_path / "link").put(segment(1), [b"first"])
    assert DirectoryStore(tmp_path / "real").get(segment(1), limit_bytes=5) == b"first"
