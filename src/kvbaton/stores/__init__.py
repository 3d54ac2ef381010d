"""Where batons lie between hand-off and take: ``put``, ``get``, ranges.

:func:`open_store` finds a store by its URL::

    memory://name                      in this process, for tests
    dir:///path?max_bytes=2GB          a directory on disk or shared memory; a plain path will do
    s3://bucket/folder, gs://, ...     whatever fsspec knows
    fsspec+PROTOCOL://...              the same, for any protocol (fsspec+memory, fsspec+file, ...)

What stands before a ``+`` in the scheme names the store.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from kvbaton.errors import StoreError, UnknownScheme
from kvbaton.registry import Provider, Registry
from kvbaton.stores.base import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    byte_views,
    check_range,
    claim_by_put,
    read_whole,
)
from kvbaton.stores.leases import Debris, Lease, LeaseInfo, LeaseState, Removal
from kvbaton.stores.urls import StoreURL, parse_size

if TYPE_CHECKING:
    from kvbaton.stores.directory import DirectoryStore
    from kvbaton.stores.encrypted import EncryptedStore
    from kvbaton.stores.fsspec import FsspecStore
    from kvbaton.stores.memory import MemoryStore

__all__ = [
    "Debris",
    "DirectoryStore",
    "EncryptedStore",
    "Entry",
    "FsspecStore",
    "Key",
    "Kind",
    "Lease",
    "LeaseInfo",
    "LeaseState",
    "MemoryStore",
    "Reader",
    "Removal",
    "Store",
    "StoreURL",
    "byte_views",
    "check_range",
    "claim_by_put",
    "open_store",
    "parse_size",
    "read_whole",
    "register_store",
    "store_schemes",
]

_FSSPEC = "kvbaton.stores.fsspec:FsspecStore"
_LAZY = {
    "DirectoryStore": "kvbaton.stores.directory",
    "EncryptedStore": "kvbaton.stores.encrypted",
    "FsspecStore": "kvbaton.stores.fsspec",
    "MemoryStore": "kvbaton.stores.memory",
}

_STORES: Registry[type[Store]] = Registry(
    "store",
    {
        "abfs": Provider(_FSSPEC, "pip install adlfs"),
        "az": Provider(_FSSPEC, "pip install adlfs"),
        "dir": Provider("kvbaton.stores.directory:DirectoryStore"),
        "fsspec": Provider(_FSSPEC, "pip install fsspec"),
        "gcs": Provider(_FSSPEC, "pip install gcsfs"),
        "gs": Provider(_FSSPEC, "pip install gcsfs"),
        "memory": Provider("kvbaton.stores.memory:MemoryStore"),
        "s3": Provider(_FSSPEC, "pip install s3fs"),
        "sftp": Provider(_FSSPEC, "pip install paramiko"),
    },
    group="kvbaton.stores",
    unknown=UnknownScheme,
)


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the store that a URL, or a plain path, names; makes it where it does not exist yet.

    Raises
    ------
    UnknownScheme
        No store is registered for the scheme, or what it needs is not installed (see the hint).
    InputError
        The URL is malformed or has an option that the store does not know.
    StoreError
        The store cannot be opened.
    """
    parsed = StoreURL.parse(url)
    name = parsed.scheme.partition("+")[0]
    store: object = _STORES.load(name)
    if not (isinstance(store, type) and issubclass(store, Store)):
        raise StoreError(
            f"{_STORES.provider(name).target} is not a store", hint="derive it from Store"
        )
    return store.from_url(parsed)


def register_store(scheme: str, target: str, *, hint: str = "") -> None:
    """Make ``target`` (``"module:Class"``) the store of a scheme, for the life of this process.

    Raises
    ------
    InputError
        The scheme already names another store.
    """
    _STORES.register(scheme, target, hint=hint)


def store_schemes() -> tuple[str, ...]:
    """Schemes that :func:`open_store` knows, sorted."""
    return _STORES.names()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
