"""Where a command works: the store and the trust domain, from its options and the settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvbaton import settings
from kvbaton.errors import InputError, NotFound, StoreError
from kvbaton.seals import TrustDomain, local_domain
from kvbaton.stores import Entry, Key, Kind, Reader, Store, StoreURL, open_store
from kvbaton.vaults import sealed

_ONE_PROCESS = ("memory", "fsspec+memory")


def trust_domain(chosen: settings.Settings | None = None) -> TrustDomain:
    """The trust domain that the settings name; its keys are made on first use.

    Raises
    ------
    SettingsError
        The keys cannot be made or used.
    """
    found = chosen or settings.from_environment()
    return local_domain(found.domains, found.domain, passphrase_file=found.key_passphrase_file)


def store_url(given: str | None) -> str:
    """The store that is named, or the settings' own.

    Raises
    ------
    InputError
        The store lives in the memory of one process, so no other command could see it.
    """
    url = given if given is not None else settings.from_environment().store
    if StoreURL.parse(url).scheme in _ONE_PROCESS:
        raise InputError(
            "a memory store ends with its process, so no other command could see it",
            at=url,
            hint="use a directory: --store dir:///path, or dir:///dev/shm/name for shared memory",
        )
    return url


def _sealed(store: Store) -> Store:
    """The store as the trust domain of the settings asks for it."""
    return sealed(store, trust_domain())


def open_to_write(given: str | None) -> Store:
    """Open a store that may be new.

    Raises
    ------
    InputError, StoreError
        The URL makes no sense, or the store cannot be made.
    """
    return _sealed(open_store(store_url(given)))


def open_to_read(given: str | None) -> Store:
    """Open a store that must be there; nothing is made.

    Raises
    ------
    NotFound
        There is no store in that place.
    InputError, StoreError
        The URL makes no sense, or the store cannot be opened.
    """
    url = store_url(given)
    parsed = StoreURL.parse(url)
    if parsed.scheme == "dir" and not Path(parsed.location, Kind.BATON.value).is_dir():
        raise NotFound(
            f"there is no store at {parsed.location}",
            hint="kvbaton export makes one; --store names another",
        )
    return _sealed(open_store(url))


def open_to_take(given: str | None) -> Store:
    """Like :func:`open_to_read`, but a store that is not there is one that answers nothing.

    A take whose store is down can still answer the caller's own messages.
    """
    url = store_url(given)
    try:
        return open_to_read(url)
    except StoreError as error:
        return _DownStore(url, error)


class _DownStore(Store):
    """Answers everything with the error that kept the store from being opened."""

    def __init__(self, url: str, error: StoreError) -> None:
        self.url, self._error = url, error

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`."""
        raise self._why()

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`."""
        raise self._why()

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`."""
        raise self._why()

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`."""
        raise self._why()

    def _why(self) -> StoreError:
        return StoreError(self._error.sentence, at=self._error.at, hint=self._error.hint)
