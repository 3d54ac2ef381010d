"""Reading an object of a directory store."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from kvbaton.errors import StoreError
from kvbaton.stores.base import Key, Reader, check_range
from kvbaton.stores.directory_files import read_all, store_error


class DirectoryReader(Reader):
    """Holds a descriptor, so the bytes stay readable when the object is deleted or evicted.

    ``use`` makes the object young.
    """

    def __init__(self, key: Key, descriptor: int, *, use: bool) -> None:
        self._key = key
        self._descriptor = descriptor
        self._users = 1  # the owner; each read in progress is one more
        self._closed = False
        self._lock = threading.Lock()
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{key}: a foreign file is in its place")
            self.size_bytes = status.st_size
            if use:
                _touch(descriptor)
        except BaseException:
            self.close()
            raise

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See :meth:`Reader.read_into`; reads straight into the buffer."""
        view = check_range(self._key, offset, buffer, self.size_bytes)
        self._hold()
        try:
            done = read_all(self._descriptor, offset, view)
        except OSError as error:
            raise store_error(f"{self._key} cannot be read", error) from error
        finally:
            self._release()
        if done < view.nbytes:
            raise StoreError(f"{self._key} ends at byte {offset + done}, it was cut while open")

    def _hold(self) -> None:
        """Keep the descriptor from being closed, and its number from being reused."""
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._key} was closed")
            self._users += 1

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self._descriptor)

    def close(self) -> None:
        """See :meth:`Reader.close`; a read in another thread is let finish."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._release()

    def __del__(self) -> None:
        self.close()


def _touch(descriptor: int) -> None:
    now_ns = time.time_ns()
    try:
        os.utime(descriptor, ns=(now_ns, now_ns))
    except PermissionError:
        return  # a store on a read-only medium can still be read
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
