"""Stores on whatever fsspec knows: object stores, remote file systems, its own memory.

``s3://bucket/folder``, ``gs://``, ``gcs://``, ``az://``, ``abfs://`` and ``sftp://`` are known
directly; any other protocol is reached as ``fsspec+PROTOCOL://...``.  Credentials and endpoints
come from the library's own configuration (``FSSPEC_*`` variables, ``~/.config/fsspec``, instance
roles) or from ``storage_options``, never from the URL, because batons carry the URL.

What differs from a directory store, because fsspec cannot do it: two processes that put one key
at the same moment may both write it (the same bytes, so nothing is lost); a put of an existing
key does not renew its age; there is no size limit (object stores have
lifecycle rules), and nothing can be leased or collected; a name can
be claimed for one caller on local disks and in fsspec's own memory only.  Elsewhere fsspec asks
whether a file exists and then writes it, which does not decide between two writers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from kvbaton.errors import InputError, NotFound, StoreError, StoreFull, StoreTimeout, UnknownScheme
from kvbaton.stores.base import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    byte_views,
    cannot_claim,
    check_claim,
    check_range,
)
from kvbaton.stores.leases import Debris
from kvbaton.stores.urls import StoreURL

_PREFIX = "fsspec+"
_TEMPORARY = "tmp"
_ABANDONED_S = 24 * 3600.0
_ATOMIC_PUT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"}
"""Protocols on which an object appears only when its upload is complete."""

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What protocols call the time of writing: a number, a datetime or an ISO 8601 text."""


class FsspecStore(Store):
    """Objects on a file system of fsspec.

    Parameters
    ----------
    url
        As in the module's description.
    storage_options
        Handed to the file system: credentials, endpoint, region.

    Raises
    ------
    UnknownScheme
        fsspec does not know the protocol, or what it needs is not installed (see the hint).
    InputError
        The URL has options or no location.
    StoreError
        The file system refused.
    """

    _claiming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, url: str | StoreURL, *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        parsed = url if isinstance(url, StoreURL) else StoreURL.parse(url)
        parsed.allow_options()
        if not parsed.location.strip("/"):
            raise InputError(f"{parsed.scheme}:// needs a bucket or folder")
        self.url = str(parsed)
        self._protocol = parsed.scheme.removeprefix(_PREFIX)
        self._fs = _file_system(self._protocol, parsed.location, dict(storage_options or {}))
        location = f"{self._protocol}://{parsed.location}"
        self._root = str(self._fs._strip_protocol(location)).rstrip("/")
        self._renames = self._protocol not in _ATOMIC_PUT
        if self._renames:
            with _translated("the store cannot be used"):
                self._reclaim()

    @classmethod
    def from_url(cls, url: StoreURL) -> FsspecStore:
        """A URL as in the module's description, without options."""
        return cls(url)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`.  The parts are joined once: fsspec's buffered files commit what
        they have when a write fails."""
        views = byte_views(parts)
        path = self._path(key)
        with _translated(f"{key} could not be stored"):
            if self._size(path) is not None:
                return 0
            data = b"".join(views)
            if self._renames:
                self._make_folder(path)
                self._put_by_rename(path, data)
            else:
                self._fs.pipe_file(path, data)
            return len(data)

    def _put_by_rename(self, path: str, data: bytes) -> None:
        temporary = f"{self._root}/{_TEMPORARY}/{int(time.time())}-{uuid.uuid4().hex}"
        self._make_folder(temporary)
        try:
            if isinstance(self._fs, LocalFileSystem):
                _write_private(temporary, data)
            else:
                self._fs.pipe_file(temporary, data)
            self._fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(temporary)
            raise

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`."""
        path = self._path(key)
        with _translated(f"{key} cannot be opened"):
            size_bytes = self._size(path)
        if size_bytes is None:
            raise NotFound(f"{key} is not in the store")
        return _FsspecReader(self._fs, key, path, size_bytes)

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`."""
        path = self._path(key)
        with _translated(f"{key} cannot be deleted"):
            if self._size(path) is None:
                return False
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                return False
            return True

    def claim(self, key: Key, data: bytes) -> bool:
        """See :meth:`Store.claim`.  By exclusive creation on a local disk; fsspec's memory is one
        for the process, so a lock of the process decides.

        A claim on disk that fails half way stays claimed.
        """
        check_claim(key, data)
        path = self._path(key)
        with _translated(f"{key} could not be claimed"):
            if isinstance(self._fs, LocalFileSystem):
                self._make_folder(path)
                return _create_synced(path, data)
            if self._protocol == "memory":
                with self._claiming:
                    return self.put(key, [data]) > 0
        raise cannot_claim(self.url)

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`."""
        with _translated(f"{key} cannot be looked up"):
            return self._size(self._path(key)) is not None

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`; the age is that of the writing, where the file system tells."""
        with _translated(f"{kind.value} cannot be listed"):
            self._fs.invalidate_cache()
            found = self._fs.find(f"{self._root}/{kind.value}", detail=True)
            entries = [
                Entry(Key(kind, name), int(info["size"]), _modified_s(info))
                for path, info in found.items()
                if Key.is_name(name := path.rpartition("/")[2])
            ]
        return iter(sorted(entries, key=lambda e: (e.modified_s, e.key.name)))

    def _path(self, key: Key) -> str:
        return f"{self._root}/{key.kind.value}/{key.name[:2]}/{key.name}"

    def _size(self, path: str) -> int | None:
        """Size of a file, None where there is none; never from a listing that may be old."""
        self._fs.invalidate_cache()
        try:
            info = self._fs.info(path)
        except FileNotFoundError:
            return None
        if info.get("islink") or info["type"] != "file":
            raise StoreError("a symbolic link or foreign file is in the place of an object")
        return int(info["size"])

    def _make_folder(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if isinstance(self._fs, LocalFileSystem):
            Path(parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self._fs.makedirs(parent, exist_ok=True)

    def sweep(self) -> Debris:
        """See :meth:`Store.sweep`; what is younger than a day may still be written, and stays."""
        if not self._renames:
            return Debris()
        with _translated("what was left behind cannot be removed"):
            return Debris(temporaries=self._reclaim())

    def _reclaim(self) -> int:
        """Remove temporary files of writers that died: those a day old.  There are no locks here,
        so a younger one may still be written.  Returns how many there were."""
        removed = 0
        folder = f"{self._root}/{_TEMPORARY}"
        self._fs.invalidate_cache()
        for path in self._fs.ls(folder, detail=False) if self._fs.isdir(folder) else []:
            made_s = path.rpartition("/")[2].partition("-")[0]
            if made_s.isdecimal() and time.time() - int(made_s) > _ABANDONED_S:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(path)
                    removed += 1
        return removed


class _FsspecReader(Reader):
    def __init__(self, fs: Any, key: Key, path: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._fs = fs
        self._key = key
        self._path = path

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See :meth:`Reader.read_into`; one range request, copied into the buffer."""
        view = check_range(self._key, offset, buffer, self.size_bytes)
        if not view.nbytes:
            return
        with _translated(f"{self._key} cannot be read"):
            data = self._fs.cat_file(self._path, start=offset, end=offset + view.nbytes)
        if len(data) != view.nbytes:
            raise StoreError(f"{self._key} gave {len(data)} bytes, not {view.nbytes}")
        view[:] = data


def _modified_s(info: Mapping[str, Any]) -> float:
    """When an object was written, from its entry in a listing: asking for each would be a request
    for each.  0.0 where the protocol does not tell, so that everything is equally old."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else float(value)


def _file_system(protocol: str, location: str, options: dict[str, Any]) -> Any:
    try:
        fs, _ = fsspec.url_to_fs(f"{protocol}://{location}", **options)
    except ImportError as error:
        hint = known_implementations.get(protocol, {}).get("err", str(error))
        raise UnknownScheme(f"{protocol}:// needs a package", hint=hint) from error
    except ValueError as error:
        raise UnknownScheme(
            f"fsspec cannot open {protocol}://", hint="see fsspec.available_protocols()"
        ) from error
    except OSError as error:
        raise StoreError(f"{protocol}:// cannot be reached ({type(error).__name__})") from error
    return fs


def _write_private(path: str, data: bytes, *, sync: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with io.FileIO(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        view = memoryview(data)
        while view.nbytes:
            view = view[file.write(view) :]
        if sync:
            os.fsync(descriptor)


def _create_synced(path: str, data: bytes) -> bool:
    """Write a file that only one caller can create, and sync it and its name; False where it is
    there already."""
    try:
        _write_private(path, data, sync=True)
    except FileExistsError:
        return False
    for folder in list(Path(path).parents)[:3]:  # any of them may be new
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return True


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn whatever a file system raises into a store error.  Client libraries raise classes of
    their own, so nothing narrower than ``Exception`` would do."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise NotFound(f"{what}: it is not there") from error
    except TimeoutError as error:
        raise StoreTimeout(f"{what}: no answer in time") from error
    except Exception as error:
        sentence = f"{what} ({type(error).__name__})"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(sentence) from error
        raise StoreError(sentence) from error
