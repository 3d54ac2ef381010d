"""Two schemes against the public suite, and how schemes are found."""

from __future__ import annotations

import pytest
from tests.seals.p256 import ORDER, EcdsaP256

from kvbaton.errors import InputError
from kvbaton.seals import SealScheme, register_seal, seal_scheme, seal_schemes
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.testing import SealTests


class TestEd25519(SealTests):
    """The built-in scheme."""

    def make_scheme(self) -> SealScheme:
        """The one that keys have by default."""
        return Ed25519()


class TestEcdsaP256(SealTests):
    """A scheme whose signatures differ each time, and whose keys have two spellings."""

    @pytest.fixture(autouse=True)
    def _registered(self) -> None:
        register_seal("ecdsa-p256", "tests.seals.p256:EcdsaP256")

    def make_scheme(self) -> SealScheme:
        """The one beside this file."""
        return EcdsaP256()

    def test_the_other_signature_is_refused(self) -> None:
        """ECDSA has two signatures for each message; one of them is good here."""
        scheme = self.make_scheme()
        private = scheme.generate()
        public, signature = scheme.public_bytes(private), scheme.sign(private, b"message")
        other = ORDER - int.from_bytes(signature[32:], "big")
        assert scheme.verify(public, b"message", signature)
        assert not scheme.verify(public, b"message", signature[:32] + other.to_bytes(32, "big"))


def test_the_built_in_scheme_is_known() -> None:
    """One scheme comes with the package; asked for twice, it is the same object."""
    assert "ed25519" in seal_schemes()
    assert seal_scheme("ed25519") is seal_scheme("ed25519")
    assert isinstance(seal_scheme("ed25519"), Ed25519)


def test_an_unknown_scheme_is_named_with_those_that_are_known() -> None:
    """The hint lists the schemes."""
    with pytest.raises(InputError) as caught:
        seal_scheme("rot13")
    assert "rot13" in caught.value.sentence
    assert "ed25519" in caught.value.hint


def test_a_name_is_given_once() -> None:
    """The built-in scheme cannot be replaced."""
    with pytest.raises(InputError):
        register_seal("ed25519", "tests.seals.p256:EcdsaP256")


@pytest.mark.parametrize(
    ("name", "target"),
    [("no-scheme", "kvbaton.seals:TrustFile"), ("other-name", "tests.seals.p256:EcdsaP256")],
)
def test_what_is_no_scheme_of_that_name_is_refused(name: str, target: str) -> None:
    """A class of another kind, and a scheme under a name that is not its own: ids contain it."""
    register_seal(name, target)
    with pytest.raises(InputError) as caught:
        seal_scheme(name)
    assert target in caught.value.sentence
