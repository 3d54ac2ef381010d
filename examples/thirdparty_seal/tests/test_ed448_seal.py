"""The Ed448 scheme against kvbaton's public suite."""

from __future__ import annotations

from kvbaton_ed448_seal import Ed448

from kvbaton.seals import seal_scheme, seal_schemes
from kvbaton.testing import SealTests


class TestEd448(SealTests):
    """Everything that a scheme must do."""

    def make_scheme(self):
        """The curve with its parameters is all there is to choose."""
        return Ed448()


def test_it_is_found_by_its_entry_point():
    """Installed, the scheme is known by name, and trust files can name it."""
    assert "ed448" in seal_schemes()
    assert isinstance(seal_scheme("ed448"), Ed448)
