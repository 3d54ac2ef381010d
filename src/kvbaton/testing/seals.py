"""The conformance suite for signature schemes: what a scheme must do to sign batons and tickets.

Derive from :class:`SealTests` and say how the scheme is made::

    class TestMyScheme(SealTests):
        def make_scheme(self):
            return MyScheme()
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.errors import InputError, NotTrusted, SettingsError, TrustFault
from kvbaton.seals import tickets
from kvbaton.seals.base import (
    ANYBODY,
    Grant,
    KeyStatus,
    Purpose,
    Requirements,
    SealScheme,
    Signer,
    TrustedKey,
    key_id,
)
from kvbaton.seals.keyring import KeyRing
from kvbaton.seals.schemes import seal_scheme, seal_schemes
from kvbaton.seals.statement import pae, sign, verify
from kvbaton.seals.trust import TrustFile
from kvbaton.wire.canonical import dumps
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.envelope import Envelope, Signature, encode_envelope, parse_envelope

PAYLOAD_TYPE = "application/vnd.kvbaton.test+json"
DOMAIN = "local"
PASSPHRASE = b"a horse, a battery and a staple"
_WINDOW = 12
"""Bytes that two keys have in common by chance once in 2**96 times."""


class KnownKeys:
    """Trust in memory: these keys, and what the domains ask for."""

    def __init__(self, *keys: TrustedKey, requirements: Requirements | None = None) -> None:
        self._keys = {key.keyid: key for key in keys}
        self._requirements = requirements or Requirements()

    def find(self, keyid: str) -> TrustedKey | None:
        """See :meth:`Trust.find`."""
        return self._keys.get(keyid)

    def keys(self) -> Iterable[TrustedKey]:
        """See :meth:`Trust.keys`."""
        return tuple(self._keys.values())

    def requirements(self, domain: str) -> Requirements:
        """See :meth:`Trust.requirements`."""
        return self._requirements


@dataclass(frozen=True)
class Pair:
    """A private key that signs, and what is trusted of it."""

    signer: Signer
    key: TrustedKey


class SealTests:
    """Conformance suite of :class:`kvbaton.seals.SealScheme`.

    Attributes
    ----------
    registered
        The scheme is found by its name; ``False`` for one that only a test knows.
    max_examples
        Examples for each property test.
    """

    registered = True
    max_examples = 25

    @abstractmethod
    def make_scheme(self) -> SealScheme:
        """Return the scheme."""

    def pair(self, sender: str = ANYBODY) -> Pair:
        """A new key that is trusted for a sender."""
        scheme = self.make_scheme()
        private = scheme.generate()
        public = scheme.public_bytes(private)
        keyid = key_id(scheme.name, public)
        grants = (Grant(sender, DOMAIN),)
        return Pair(Signer(keyid, scheme, private), TrustedKey(keyid, scheme, public, grants))

    def for_all(self, check: Callable[..., None], **strategies: st.SearchStrategy[object]) -> None:
        """Run a property: ``check`` on many values."""
        bounded = settings(max_examples=self.max_examples, deadline=None, database=None)
        bounded(given(**strategies)(check))()

    # -- keys ---------------------------------------------------------------------------------

    def test_the_name_can_stand_in_files(self) -> None:
        """A name is lower-case letters, digits, dots and hyphens."""
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", self.make_scheme().name)

    def test_the_scheme_is_found_by_its_name(self) -> None:
        """Trust files name schemes; who reads one gets this scheme."""
        if self.registered:
            scheme = self.make_scheme()
            assert scheme.name in seal_schemes()
            assert type(seal_scheme(scheme.name)) is type(scheme)

    def test_each_key_is_new(self) -> None:
        """No two keys are alike."""
        scheme = self.make_scheme()
        publics = {scheme.public_bytes(scheme.generate()) for _ in range(8)}
        assert len(publics) == 8
        assert all(type(public) is bytes and public for public in publics)

    def test_a_key_has_one_id(self) -> None:
        """The id depends on the scheme's name and the public key, and on nothing else."""
        scheme = self.make_scheme()
        private = scheme.generate()
        public = scheme.public_bytes(private)
        again = self.make_scheme().public_bytes(scheme.load(scheme.dump(private, None), None))
        assert again == public
        assert key_id(scheme.name, again) == key_id(scheme.name, public)
        assert re.fullmatch(r"[0-9a-f]{64}", key_id(scheme.name, public))
        assert key_id(scheme.name + "x", public) != key_id(scheme.name, public)

    @pytest.mark.parametrize("passphrase", [None, PASSPHRASE, b"\x00\xff", b"x" * 200])
    def test_a_key_comes_back_from_its_file(self, passphrase: bytes | None) -> None:
        """What was loaded signs as what was dumped."""
        scheme = self.make_scheme()
        private = scheme.generate()
        again = scheme.load(scheme.dump(private, passphrase), passphrase)
        public = scheme.public_bytes(private)
        assert scheme.public_bytes(again) == public
        assert scheme.verify(public, b"message", scheme.sign(again, b"message"))

    @pytest.mark.parametrize("wrong", [None, b"another", PASSPHRASE[:-1], PASSPHRASE + b" "])
    def test_another_passphrase_opens_nothing(self, wrong: bytes | None) -> None:
        """A wrong passphrase, or none, is an InputError that shows neither."""
        scheme = self.make_scheme()
        with pytest.raises(InputError) as caught:
            scheme.load(scheme.dump(scheme.generate(), PASSPHRASE), wrong)
        assert PASSPHRASE.decode() not in str(caught.value)
        assert wrong is None or wrong.decode() not in str(caught.value)

    def test_what_is_no_key_is_refused(self) -> None:
        """Whatever a file holds, a key comes out of it or InputError is raised."""
        scheme = self.make_scheme()
        whole = scheme.dump(scheme.generate(), None)

        def check(data: bytes, passphrase: bytes | None) -> None:
            with pytest.raises(InputError):
                scheme.load(data, passphrase)

        def cut(end: int) -> None:
            with pytest.raises(InputError):
                scheme.load(whole[:end], None)

        some = st.one_of(st.none(), st.binary(min_size=1, max_size=20))
        self.for_all(check, data=st.binary(max_size=300), passphrase=some)
        self.for_all(cut, end=st.integers(0, len(whole) // 2))

    def test_a_private_key_does_not_show(self) -> None:
        """Neither an encrypted file nor a representation has any of the private bytes."""
        scheme, one = self.make_scheme(), self.pair()
        private = one.signer.private
        other = _body(scheme.dump(scheme.generate(), None))
        secrets = [
            window
            for window in _windows(_body(scheme.dump(private, None)))
            if window not in other and window not in one.key.public
        ]
        assert secrets, "the file of a private key has nothing of its own"
        encrypted = _body(scheme.dump(private, PASSPHRASE))
        shown = f"{private!r} {private} {one.signer!r} {one.key!r}".lower()
        for window in secrets:
            assert window not in encrypted
            assert window.hex() not in shown
            assert repr(window)[2:-1].lower() not in shown

    def test_equal_keys_have_unequal_encrypted_files(self) -> None:
        """Encryption is salted: two files do not show that they hold the same key."""
        scheme = self.make_scheme()
        private = scheme.generate()
        assert scheme.dump(private, PASSPHRASE) != scheme.dump(private, PASSPHRASE)

    # -- signatures ---------------------------------------------------------------------------

    def test_what_is_signed_is_verified(self) -> None:
        """Any payload comes back, with the key that signed it."""
        one, others = self.pair(), [self.pair().key for _ in range(2)]
        trust = KnownKeys(*others, one.key)

        def check(payload: bytes) -> None:
            verified = _verify(sign(PAYLOAD_TYPE, payload, one.signer), trust)
            assert verified.payload == payload
            assert verified.key is one.key

        self.for_all(check, payload=st.binary(max_size=2000))
        check(bytes(1 << 20))

    def test_a_changed_payload_is_refused(self) -> None:
        """Any flipped bit of the payload, and any other payload, has a wrong signature."""
        one, payload = self.pair(), b'{"hops":1,"sender":"planner"}'
        trust, envelope = KnownKeys(one.key), _signed(one, payload)

        def check(other: bytes) -> None:
            if other != payload:
                _refused(replace(envelope, payload=other), trust, TrustFault.SIGNATURE)

        for flipped in _flips(payload):
            check(flipped)
        self.for_all(check, other=st.binary(max_size=200))
        check(payload + b" ")
        check(b"")

    def test_a_changed_signature_is_refused(self) -> None:
        """Any flipped bit, and a signature that was cut or has more behind it, is wrong."""
        one = self.pair()
        trust, envelope = KnownKeys(one.key), _signed(one, b"payload")
        genuine = envelope.signatures[0].sig

        def check(sig: bytes) -> None:
            if sig != genuine:
                changed = (Signature(one.key.keyid, sig),)
                _refused(replace(envelope, signatures=changed), trust, TrustFault.SIGNATURE)

        step = max(1, len(genuine) // 128)
        for flipped in list(_flips(genuine))[::step]:
            check(flipped)
        for sig in (genuine[:-1], genuine + b"\0", genuine * 2, bytes(len(genuine))):
            check(sig)
        self.for_all(check, sig=st.binary(min_size=1, max_size=len(genuine) + 8))

    def test_another_public_key_is_refused(self) -> None:
        """No flipped bit, cut or longer spelling of a public key verifies what the key signed."""
        one = self.pair()
        public = one.key.public
        raw = sign(PAYLOAD_TYPE, b"payload", one.signer)
        step = max(1, len(public) // 128)
        for other in (*list(_flips(public))[::step], public[:-1], public + b"\0", b""):
            known = KnownKeys(replace(one.key, public=other))
            assert _fault(raw, known) is TrustFault.SIGNATURE

    def test_a_signature_is_for_one_payload_type(self) -> None:
        """A document of one type cannot be passed off as one of another."""
        one, other_type = self.pair(), PAYLOAD_TYPE.replace("test", "same")  # as long as the other
        trust, envelope = KnownKeys(one.key), _signed(one, b"payload")
        raw = encode_envelope(replace(envelope, payload_type=other_type))
        assert _fault(raw, trust) is TrustFault.PAYLOAD_TYPE
        with pytest.raises(NotTrusted) as caught:
            verify(raw, payload_type=other_type, purpose=Purpose.BATON, trust=trust)
        assert caught.value.fault is TrustFault.SIGNATURE
        assert pae(PAYLOAD_TYPE, b"payload") != pae(other_type, b"payload")

    def test_a_key_id_is_a_hint_that_must_be_right(self) -> None:
        """What one key signed under another's id is refused, whichever of them is known."""
        one, two = self.pair(), self.pair()
        both, envelope = KnownKeys(one.key, two.key), _signed(one, b"payload")
        sig = envelope.signatures[0].sig
        renamed = replace(envelope, signatures=(Signature(two.key.keyid, sig),))
        _refused(renamed, both, TrustFault.KEYID)
        _refused(renamed, KnownKeys(one.key), TrustFault.KEYID)
        _refused(renamed, KnownKeys(two.key), TrustFault.SIGNATURE)
        _refused(renamed, KnownKeys(), TrustFault.UNKNOWN_KEY)
        _refused(envelope, KnownKeys(two.key), TrustFault.UNKNOWN_KEY)

    def test_signing_again_by_another_trusted_key_changes_the_signer(self) -> None:
        """Another key's signature is good, but speaks for that key's senders only."""
        mine, theirs = self.pair("planner"), self.pair("critic")
        trust = KnownKeys(mine.key, theirs.key)
        verified = _verify(sign(PAYLOAD_TYPE, b"payload", theirs.signer), trust)
        assert verified.key.speaks_for("critic", DOMAIN)
        assert not verified.key.speaks_for("planner", DOMAIN)
        assert not verified.key.speaks_for("critic", "elsewhere")

    def test_exactly_one_signature(self) -> None:
        """None, or two, are refused, each with its own fault."""
        one = self.pair()
        trust, envelope = KnownKeys(one.key), _signed(one, b"payload")
        _refused(replace(envelope, signatures=()), trust, TrustFault.UNSIGNED)
        signature = {
            "keyid": one.key.keyid,
            "sig": base64.b64encode(envelope.signatures[0].sig).decode("ascii"),
        }
        doubled = {
            "payload": base64.b64encode(b"payload").decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [signature, signature],
        }
        assert _fault(dumps(doubled), trust) is TrustFault.DOUBLY_SIGNED

    def test_what_a_key_may_do_is_looked_at(self) -> None:
        """A revoked key voids, a retired one verifies, one for tickets signs no baton."""
        one = self.pair()
        raw = sign(PAYLOAD_TYPE, b"payload", one.signer)
        assert _fault(raw, KnownKeys(_with(one, status=KeyStatus.REVOKED))) is (
            TrustFault.KEY_REVOKED
        )
        retired = _with(one, status=KeyStatus.RETIRED)
        assert _verify(raw, KnownKeys(retired)).key is retired
        for_tickets = _with(one, purposes=frozenset({Purpose.TICKET}))
        assert _fault(raw, KnownKeys(for_tickets)) is TrustFault.SIGNER

    def test_verifying_never_raises(self) -> None:
        """Whatever the bytes are, the answer is yes or no."""
        scheme, one = self.make_scheme(), self.pair()
        public, signature = one.key.public, scheme.sign(one.signer.private, b"message")
        publics = st.one_of(st.just(public), st.binary(max_size=2 * len(public)))
        signatures = st.one_of(st.just(signature), st.binary(max_size=2 * len(signature)))

        def check(public: bytes, message: bytes, signature: bytes) -> None:
            assert type(scheme.verify(public, message, signature)) is bool

        self.for_all(check, public=publics, message=st.binary(), signature=signatures)
        assert scheme.verify(public, b"message", signature) is True

    # -- key rings and tickets ----------------------------------------------------------------

    def test_a_key_ring_keeps_its_keys(self, tmp_path: Path) -> None:
        """A key that one process made signs in another, encrypted or not, before and after a
        rotation; what it signed is good until it is revoked."""
        if not self.registered:
            return
        trust = TrustFile(tmp_path / "trust.json")
        for passphrase in (None, PASSPHRASE):
            ring = KeyRing(tmp_path / "keys", trust, passphrase)
            made = ring.generate([Grant("planner", DOMAIN)], scheme=self.make_scheme().name)
            read = KeyRing(tmp_path / "keys", TrustFile(trust.path), passphrase)
            assert read.signer("planner", DOMAIN).keyid == made.keyid
            raw = sign(PAYLOAD_TYPE, b"payload", read.signer("planner", DOMAIN))
            assert _verify(raw, trust).key == made
            new = ring.rotate(made.keyid)
            assert new.scheme.name == made.scheme.name
            assert read.signer("planner", DOMAIN).keyid == new.keyid
            assert _verify(raw, trust).key.status is KeyStatus.RETIRED
            trust.revoke(made.keyid)
            assert _fault(raw, TrustFile(trust.path)) is TrustFault.KEY_REVOKED
        with pytest.raises(SettingsError):
            KeyRing(tmp_path / "keys", trust, b"another").signer("planner", DOMAIN)

    def test_a_ticket_is_for_one_baton_and_one_receiver(self) -> None:
        """Another receiver, baton, domain or time, and a baton passed off as one, are refused."""
        one = self.pair("planner")
        text, trust = self._ticket(one), KnownKeys(one.key)
        assert _check(text, trust).audience == "coder"
        assert _ticket_fault(text, trust, audience="critic") is TrustFault.TICKET_AUDIENCE
        assert _ticket_fault(text, trust, baton="b" * 64) is TrustFault.TICKET_OTHER
        assert _ticket_fault(text, trust, domain="elsewhere") is TrustFault.DOMAIN
        assert _ticket_fault(text, trust, sender="critic") is TrustFault.SIGNER
        assert _ticket_fault(text, trust, now_ms=3_000_000) is TrustFault.TICKET_EXPIRED
        assert _ticket_fault(text, trust, now_ms=0) is TrustFault.NOT_YET
        baton = base64.urlsafe_b64encode(sign(PAYLOAD_TYPE, b"payload", one.signer)).decode()
        for_batons = KnownKeys(_with(one, purposes=frozenset({Purpose.BATON})))
        for said, known in ((baton, trust), (text, for_batons), (text, KnownKeys())):
            assert _ticket_fault(said, known) is TrustFault.TICKET_INVALID

    def test_a_ticket_is_used_up(self) -> None:
        """A ticket for two takes lets two through, and never a third."""
        one, claimed = self.pair("planner"), set[str]()

        def claim(name: str) -> bool:
            fresh = name not in claimed
            claimed.add(name)
            return fresh

        ticket = _check(self._ticket(one), KnownKeys(one.key))
        keys = DomainKeys(bytes(32))
        for _ in range(ticket.uses):
            tickets.spend(ticket, keys, claim)
        with pytest.raises(NotTrusted) as caught:
            tickets.spend(ticket, keys, claim)
        assert caught.value.fault is TrustFault.TICKET_SPENT

    def _ticket(self, one: Pair) -> str:
        return tickets.issue(
            "a" * 64,
            issuer="planner",
            audience="coder",
            domain=DOMAIN,
            not_before_ms=1_000_000,
            expires_ms=2_000_000,
            uses=2,
            signer=one.signer,
        )


def _with(one: Pair, **changes: Any) -> TrustedKey:
    return replace(one.key, **changes)


def _signed(one: Pair, payload: bytes) -> Envelope:
    return parse_envelope(sign(PAYLOAD_TYPE, payload, one.signer), payload_type=PAYLOAD_TYPE)


def _verify(raw: bytes, trust: Any) -> Any:
    return verify(raw, payload_type=PAYLOAD_TYPE, purpose=Purpose.BATON, trust=trust)


def _fault(raw: bytes, trust: Any) -> TrustFault:
    with pytest.raises(NotTrusted) as caught:
        _verify(raw, trust)
    return caught.value.fault


def _refused(envelope: Envelope, trust: Any, fault: TrustFault) -> None:
    assert _fault(encode_envelope(envelope), trust) is fault


def _check(text: str, trust: Any, **changes: Any) -> tickets.Ticket:
    asked: dict[str, Any] = {
        "baton": "a" * 64,
        "sender": "planner",
        "audience": "coder",
        "domain": DOMAIN,
        "now_ms": 1_500_000,
    }
    return tickets.check_ticket(text, **{**asked, **changes}, trust=trust)


def _ticket_fault(text: str, trust: Any, **changes: Any) -> TrustFault:
    with pytest.raises(NotTrusted) as caught:
        _check(text, trust, **changes)
    return caught.value.fault


def _flips(data: bytes) -> Iterator[bytes]:
    """The data with each of its bits flipped."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << (bit % 8)
        yield bytes(changed)


def _windows(data: bytes) -> Iterator[bytes]:
    return (data[i : i + _WINDOW] for i in range(len(data) - _WINDOW + 1))


def _body(data: bytes) -> bytes:
    """The bytes of a file, or what is inside it where it is PEM."""
    inside = re.search(rb"-----BEGIN [A-Z ]+-----\s(.*)-----END", data, flags=re.DOTALL)
    if inside is None:
        return data
    try:
        return base64.b64decode(b"".join(inside.group(1).split()), validate=True)
    except binascii.Error:
        return data
