"""Passphrases are stretched less than they should be, so that tests are quick."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbaton.seals.keyring._SCRYPT_N", 1 << 10)
