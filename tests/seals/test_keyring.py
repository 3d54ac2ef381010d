"""Private keys: whose signs, how they lie on disk, and a domain's first use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvbaton.errors import InputError, NotTrusted, SettingsError, TrustFault
from kvbaton.seals import (
    Grant,
    KeyRing,
    KeyStatus,
    Purpose,
    TrustedKey,
    TrustFile,
    local_domain,
    local_keys,
    public_line,
    read_public_line,
)
from kvbaton.seals.keyring import passphrase_from
from kvbaton.seals.statement import sign, verify
from kvbaton.seals.trust import TrustEdit

PASSPHRASE = b"correct horse battery staple"


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    """An empty ring."""
    return local_keys(tmp_path / "domains")


def reopened(ring: KeyRing, passphrase: bytes | None = None) -> KeyRing:
    """The same folder, read by somebody else."""
    return KeyRing(ring.folder, TrustFile(ring.trust.path), passphrase)


def for_(*senders: str, domain: str = "local") -> list[Grant]:
    """Grants of a domain."""
    return [Grant(sender, domain) for sender in senders]


# --- whose key signs ------------------------------------------------------------------------------


def test_an_own_key_signs_before_one_for_everybody(ring: KeyRing) -> None:
    """The exact sender first, however old its key is; then who speaks for all."""
    own = ring.generate(for_("planner"))
    everybody = ring.generate(for_("*"))
    for found in (ring, reopened(ring)):
        assert found.signer("planner", "local").keyid == own.keyid
        assert found.signer("coder", "local").keyid == everybody.keyid


def test_the_newest_of_several_keys_signs(ring: KeyRing) -> None:
    """Also where they were made in the same millisecond."""
    made = [ring.generate(for_("planner")).keyid for _ in range(5)]
    assert reopened(ring).signer("planner", "local").keyid == made[-1]


def test_a_key_signs_in_its_domain_only(ring: KeyRing) -> None:
    """Neither another domain's key nor another sender's is taken for want of a better one."""
    ring.generate(for_("*", domain="lab"))
    ring.generate(for_("critic"))
    with pytest.raises(SettingsError) as caught:
        ring.signer("planner", "local")
    assert "'planner'" in caught.value.sentence
    assert "kvbaton keys generate" in caught.value.hint


def test_a_key_signs_for_its_purpose_only(ring: KeyRing) -> None:
    """A key for tickets is no key for batons, even if it is newer."""
    batons = ring.generate(for_("planner"), purposes=[Purpose.BATON])
    tickets = ring.generate(for_("planner"), purposes=[Purpose.TICKET])
    assert ring.signer("planner", "local").keyid == batons.keyid
    assert ring.signer("planner", "local", Purpose.TICKET).keyid == tickets.keyid


def test_a_key_that_is_only_trusted_does_not_sign(ring: KeyRing, tmp_path: Path) -> None:
    """The public half of somebody else's key is no private key."""
    elsewhere = local_keys(tmp_path / "elsewhere")
    theirs = elsewhere.generate(for_("planner"))
    mine = ring.generate(for_("*"))
    ring.trust.add(theirs)
    assert ring.signer("planner", "local").keyid == mine.keyid


@pytest.mark.parametrize("change", ["revoke", "retire"])
def test_a_key_that_lost_trust_signs_no_more(ring: KeyRing, change: str) -> None:
    """Who has signed with it before sees the change of another process at once."""
    own, everybody = ring.generate(for_("planner")), ring.generate(for_("*"))
    assert ring.signer("planner", "local").keyid == own.keyid
    getattr(TrustFile(ring.trust.path), change)(own.keyid)
    assert ring.signer("planner", "local").keyid == everybody.keyid


def test_the_second_call_reads_no_key(ring: KeyRing) -> None:
    """A signer is kept as long as the trust file stays as it is, whatever the folder holds."""
    key = ring.generate(for_("planner"))
    first = ring.signer("planner", "local")
    (ring.folder / f"{key.keyid}.pem").write_bytes(b"")
    assert ring.signer("planner", "local") is first


# --- rotation ---------------------------------------------------------------------------------


def test_rotation_voids_nothing(ring: KeyRing) -> None:
    """The new key has the old one's rights and note; what the old one signed stays good."""
    old = ring.generate(for_("planner", "critic"), purposes=[Purpose.BATON], note="of the planner")
    raw = sign("test", b"payload", ring.signer("planner", "local"))
    new = ring.rotate(old.keyid)
    assert (new.grants, new.purposes) == (old.grants, old.purposes)
    assert ring.signer("planner", "local").keyid == new.keyid
    entries = {entry.key.keyid: entry for entry in reopened(ring).trust.entries()}
    assert entries[old.keyid].key.status is KeyStatus.RETIRED
    assert entries[new.keyid].note == "of the planner"
    verified = verify(raw, payload_type="test", purpose=Purpose.BATON, trust=ring.trust)
    assert verified.key.keyid == old.keyid


def test_only_an_own_trusted_key_is_rotated(ring: KeyRing, tmp_path: Path) -> None:
    """Neither somebody else's, nor one that signs no more, nor one that is not known."""
    theirs = local_keys(tmp_path / "elsewhere").generate(for_("planner"))
    ring.trust.add(theirs)
    with pytest.raises(SettingsError):
        ring.rotate(theirs.keyid)
    mine = ring.generate(for_("*"))
    ring.rotate(mine.keyid)
    for keyid in (mine.keyid, "a" * 64):
        with pytest.raises(InputError):
            ring.rotate(keyid)
    assert ring.trust.find(theirs.keyid) == theirs


# --- files --------------------------------------------------------------------------------------


def test_private_keys_are_their_owners_only(ring: KeyRing) -> None:
    """Mode 0600 in a folder of mode 0700, and nothing left aside."""
    key = ring.generate(for_("planner"))
    (path,) = ring.folder.iterdir()
    assert path.name == f"{key.keyid}.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ring.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("what", "mode"), [("file", 0o640), ("file", 0o604), ("folder", 0o770)])
def test_keys_that_others_may_reach_are_refused(ring: KeyRing, what: str, mode: int) -> None:
    """A key that others may read, or in a folder into which they may put one, signs nothing."""
    key = ring.generate(for_("planner"))
    (ring.folder if what == "folder" else ring.folder / f"{key.keyid}.pem").chmod(mode)
    with pytest.raises(SettingsError) as caught:
        reopened(ring).signer("planner", "local")
    assert caught.value.hint.startswith("chmod")


def test_keys_of_another_user_are_refused(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trust file is looked at first; here it is the one that belongs to somebody else."""
    ring.generate(for_("planner"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SettingsError, match="another user"):
        reopened(ring).signer("planner", "local")


def test_a_key_under_the_name_of_another_is_refused(ring: KeyRing) -> None:
    """A file is what its name says, or an error."""
    one, two = ring.generate(for_("planner")), ring.generate(for_("critic"))
    (ring.folder / f"{one.keyid}.pem").replace(ring.folder / f"{two.keyid}.pem")
    with pytest.raises(SettingsError, match="not the one of its name"):
        reopened(ring).signer("critic", "local")


def test_a_damaged_key_is_an_error_and_no_other_key_signs_instead(ring: KeyRing) -> None:
    """What was to sign is said; another key would change who is accountable."""
    ring.generate(for_("*"))
    own = ring.generate(for_("planner"))
    path = ring.folder / f"{own.keyid}.pem"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(SettingsError) as caught:
        reopened(ring).signer("planner", "local")
    assert caught.value.at == str(path)


def test_a_passphrase_encrypts_keys(ring: KeyRing) -> None:
    """Only who has it signs; the error names the setting, and shows no passphrase."""
    guarded = reopened(ring, PASSPHRASE)
    key = guarded.generate(for_("planner"))
    assert b"ENCRYPTED" in (ring.folder / f"{key.keyid}.pem").read_bytes()
    assert reopened(ring, PASSPHRASE).signer("planner", "local").keyid == key.keyid
    for wrong in (None, b"another"):
        with pytest.raises(SettingsError) as caught:
            reopened(ring, wrong).signer("planner", "local")
        assert "KVBATON_KEY_PASSPHRASE_FILE" in caught.value.hint
        assert "another" not in str(caught.value)


def test_a_passphrase_is_stretched_before_it_encrypts(ring: KeyRing) -> None:
    """The file's own format would let guesses pass by the million: the passphrase alone does not
    open it, and equal passphrases are unequal for each key."""
    guarded = reopened(ring, PASSPHRASE)
    keys = [guarded.generate(for_("planner")) for _ in range(2)]
    for key in keys:
        data = (ring.folder / f"{key.keyid}.pem").read_bytes()
        with pytest.raises(InputError):
            key.scheme.load(data, PASSPHRASE)
    one, other = (guarded._secret(key.keyid) for key in keys)
    assert one != other
    assert one == reopened(ring, PASSPHRASE)._secret(keys[0].keyid)


def test_a_key_that_needs_its_passphrase_is_not_replaced_by_one_without(ring: KeyRing) -> None:
    """Rotation without the passphrase is refused, and changes nothing."""
    key = reopened(ring, PASSPHRASE).generate(for_("planner"))
    with pytest.raises(SettingsError):
        ring.rotate(key.keyid)
    assert ring.trust.keys() == (key,)
    new = reopened(ring, PASSPHRASE).rotate(key.keyid)
    assert b"ENCRYPTED" in (ring.folder / f"{new.keyid}.pem").read_bytes()


def test_the_passphrase_is_asked_for_when_a_key_needs_it(ring: KeyRing) -> None:
    """A key that is not encrypted does not touch it."""

    def ask() -> bytes:
        raise AssertionError("asked")

    key = ring.generate(for_("planner"))
    other = KeyRing(ring.folder, ring.trust, ask)
    assert other.signer("planner", "local").keyid == key.keyid


def test_a_passphrase_file(tmp_path: Path) -> None:
    """One line, without its end; others must not read it, and it must hold something."""
    path = tmp_path / "passphrase"
    for data in (b"secret", b"secret\n", b"secret\r\n"):
        path.write_bytes(data)
        path.chmod(0o600)
        assert passphrase_from(path)() == b"secret"
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="others may read"):
        passphrase_from(path)()
    path.chmod(0o600)
    for data in (b"", b"\n", b"x" * 1001):
        path.write_bytes(data)
        with pytest.raises(SettingsError):
            passphrase_from(path)()
    with pytest.raises(SettingsError, match="cannot be read"):
        passphrase_from(tmp_path / "absent")()


# --- lines ----------------------------------------------------------------------------------------


def test_a_public_key_travels_as_a_line(ring: KeyRing) -> None:
    """The line says scheme and bytes; white space around it does no harm."""
    key = ring.generate(for_("planner"))
    line = public_line(key)
    assert line.startswith("kvbaton-key ed25519 ")
    assert "\n" not in line
    scheme, public = read_public_line(f"  {line}\n")
    assert (scheme.name, public) == ("ed25519", key.public)


def test_a_line_that_was_damaged_is_refused(ring: KeyRing) -> None:
    """Cut anywhere, or with any letter changed, it names no key."""
    line = public_line(ring.generate(for_("planner")))
    for end in range(len(line)):
        with pytest.raises(InputError):
            read_public_line(line[:end])
    for place in range(len(line)):
        letter = "A" if line[place] != "A" else "B"
        with pytest.raises(InputError):
            read_public_line(line[:place] + letter + line[place + 1 :])


# --- a domain's first use -------------------------------------------------------------------------


def test_a_domain_signs_without_being_set_up(tmp_path: Path) -> None:
    """The first use makes a secret, a key for everybody, and its trust; the second finds them."""
    first = local_domain(tmp_path / "domains")
    signer = first.signers.signer("anybody", "local")
    again = local_domain(tmp_path / "domains")
    assert again == first
    assert again.signers.signer("anybody", "local").keyid == signer.keyid
    key = again.trust.find(signer.keyid)
    assert key is not None
    assert (key.grants, key.status) == ((Grant("*", "local"),), KeyStatus.TRUSTED)
    assert [path.name for path in tmp_path.iterdir()] == ["domains"]
    files = [path for path in (tmp_path / "domains").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_each_domain_has_its_own_key(tmp_path: Path) -> None:
    """A key of one domain does not speak in another."""
    one, two = (local_domain(tmp_path, name) for name in ("local", "lab"))
    ids = {d.signers.signer("a", d.name).keyid for d in (one, two)}
    assert len(ids) == 2
    assert len(tuple(one.trust.keys())) == 2


def test_what_the_owner_has_set_up_is_left_alone(tmp_path: Path) -> None:
    """No key for everybody appears beside keys that were made by name, nor after a revocation."""
    ring = local_keys(tmp_path)
    key = ring.generate(for_("planner"))
    assert tuple(local_domain(tmp_path).trust.keys()) == (key,)
    ring.trust.revoke(key.keyid)
    domain = local_domain(tmp_path)
    with pytest.raises(SettingsError):
        domain.signers.signer("planner", "local")


def test_trusting_somebody_first_does_not_keep_a_domain_from_signing(tmp_path: Path) -> None:
    """A public key of another machine is none of our own."""
    theirs = local_keys(tmp_path / "elsewhere").generate(for_("*"))
    TrustFile(tmp_path / "domains" / "trust.json").add(theirs)
    domain = local_domain(tmp_path / "domains")
    assert domain.signers.signer("a", "local").keyid != theirs.keyid


FIRST_USE = """
import sys
from pathlib import Path
from kvbaton.seals import local_domain
from kvbaton.seals.statement import sign
domain = local_domain(Path(sys.argv[1]))
sys.stdin.read()
sys.stdout.buffer.write(sign("test", b"payload", domain.signers.signer("a", "local")))
"""


def test_processes_that_are_first_together_agree(tmp_path: Path) -> None:
    """Six at once end with one secret and one key, and each trusts what the others signed."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(6)
    ]
    signed = [process.communicate(b"go")[0] for process in running]
    assert all(process.returncode == 0 for process in running)
    trust = local_domain(tmp_path).trust
    for raw in signed:
        assert verify(raw, payload_type="test", purpose=Purpose.BATON, trust=trust)
    assert len(list((tmp_path / "keys").iterdir())) == len(tuple(trust.keys())) == 1


def test_two_homes_trust_each_other_only_when_told(tmp_path: Path) -> None:
    """What one home signs is refused in the other until its public line is added there."""
    here, there = local_domain(tmp_path / "here"), local_domain(tmp_path / "there")
    raw = sign("test", b"payload", there.signers.signer("planner", "local"))
    with pytest.raises(NotTrusted) as caught:
        verify(raw, payload_type="test", purpose=Purpose.BATON, trust=here.trust)
    assert caught.value.fault is TrustFault.UNKNOWN_KEY
    (key,) = there.trust.keys()
    TrustFile(tmp_path / "here" / "trust.json").add(key)
    assert verify(raw, payload_type="test", purpose=Purpose.BATON, trust=here.trust)


@pytest.mark.parametrize("damage", ["short", "readable"])
def test_a_secret_that_cannot_be_used_is_an_error(tmp_path: Path, damage: str) -> None:
    """A wrong size, or others may read it."""
    local_domain(tmp_path)
    path = tmp_path / "local.key"
    if damage == "short":
        path.write_bytes(b"short")
    else:
        path.chmod(0o644)
    with pytest.raises(SettingsError) as caught:
        local_domain(tmp_path)
    assert caught.value.at == str(path)


def test_a_lost_trust_file_is_not_begun_anew(tmp_path: Path) -> None:
    """Where private keys are, a missing trust file is a loss: what the domain asked for is gone."""
    domain = local_domain(tmp_path / "domains")
    domain.signers.signer("a", "local")
    (tmp_path / "domains" / "trust.json").unlink()
    with pytest.raises(SettingsError, match="is gone") as caught:
        local_domain(tmp_path / "domains")
    assert "restore" in caught.value.hint


def test_a_folder_that_is_being_begun_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes begin a domain: a key that the other has not yet trusted is no lost trust."""
    waiting, add = threading.Event(), TrustEdit.add

    def slow(edit: TrustEdit, key: TrustedKey, *, note: str = "") -> TrustedKey:
        waiting.set()
        time.sleep(0.3)  # long enough for the other to look, which then waits for the lock
        return add(edit, key, note=note)

    monkeypatch.setattr(TrustEdit, "add", slow)
    with ThreadPoolExecutor(1) as first:
        begun = first.submit(local_domain, tmp_path / "domains")
        assert waiting.wait(60)
        second = local_domain(tmp_path / "domains")
        keys = {domain.signers.signer("a", "local").keyid for domain in (begun.result(), second)}
    assert len(keys) == len(list((tmp_path / "domains" / "keys").glob("*.pem"))) == 1
