"""What the tests of stores share."""

import pytest

from kvbaton.stores import DirectoryStore


@pytest.fixture
def root(tmp_path):
    """The directory of a store, not made yet."""
    return tmp_path / "store"


@pytest.fixture
def store(root):
    """A directory store without a limit."""
    return DirectoryStore(root)
