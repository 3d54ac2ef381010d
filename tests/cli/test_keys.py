"""`kvbaton keys`: from the first key to its revocation, on one machine and between two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Result
from tests.cli.test_reference import names, shape

from kvbaton.cli import places
from kvbaton.errors import NotTrusted, TrustFault
from kvbaton.seals import Purpose
from kvbaton.seals.statement import sign, verify

Keys = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of this test's own: what is revoked here must not be missed elsewhere."""
    folder = tmp_path / "data"
    monkeypatch.setenv("KVBATON_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def keys(cli: Cli, data: Path) -> Keys:
    """Runs `kvbaton keys ... --json`, which must succeed; returns what it printed."""

    def call(*arguments: object, stdin: bytes = b"") -> Any:
        result = cli("keys", *arguments, "--json", stdin=stdin)
        assert result.code == 0, result.out
        return result.json

    return call


def error(result: Result) -> Any:
    """The error in the JSON of a command that failed."""
    assert result.code != 0
    return result.json["error"]


def test_nothing_is_made_by_looking(keys: Keys, data: Path) -> None:
    """A list of no keys, and no folder."""
    said = keys("list")
    assert (said["keys"], said["domains"]) == ([], {})
    assert said["file"] == str(data / "domains" / "trust.json")
    assert keys("domain") == {"domain": "local", "tickets": False, "encryption": False}
    assert not data.exists()


def test_a_key_is_made_for_named_senders(keys: Keys, cli: Cli) -> None:
    """Its private half is here; people read for whom it signs, and never the private half."""
    made = keys(
        "generate", "--sender", "planner", "--sender", "critic", "--domain", "lab",
        "--purpose", "ticket", "--note", "on the shelf",
    )  # fmt: skip
    assert made["grants"] == [{"sender": s, "domain": "lab"} for s in ("planner", "critic")]
    assert (made["purposes"], made["status"], made["private"]) == (["ticket"], "trusted", True)
    shown = cli("keys", "list").out
    assert made["keyid"][:16] in shown
    assert "on the shelf" in shown
    said = cli("keys", "generate", "--any").out
    assert "signs batons and tickets of everybody in domain local" in said


def test_what_signs_for_the_others_does_not_depend_on_the_order(keys: Keys) -> None:
    """Making a key for one sender before anything else still leaves everybody able to sign."""
    own = keys("generate", "--sender", "planner")
    domain = places.trust_domain()
    assert domain.signers.signer("planner", "local").keyid == own["keyid"]
    assert domain.signers.signer("coder", "local").keyid != own["keyid"]
    assert len(keys("list")["keys"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [(), ("--any", "--sender", "planner"), ("--sender", "*"), ("--any", "--domain", "No Name")],
)
def test_whom_a_key_speaks_for_is_said_once(keys: Keys, cli: Cli, arguments: Any) -> None:
    """Neither nobody, nor both, nor a star for a name, nor a domain that cannot be one."""
    assert error(cli("keys", "generate", *arguments, "--json"))["exit_code"] == 3
    assert keys("list")["keys"] == []


def test_private_bytes_are_never_printed(keys: Keys, cli: Cli, data: Path) -> None:
    """No command shows any line of a private key's file."""
    made = keys("generate", "--sender", "planner")
    pem = (data / "domains" / "keys" / f"{made['keyid']}.pem").read_text(encoding="ascii")
    secret = pem.splitlines()[1]
    said = [cli("keys", *words).out for words in (("list",), ("export", made["keyid"]))]
    said += [str(keys("list")), str(keys("rotate", made["keyid"]))]
    assert all(secret[-32:] not in text for text in said)


def test_a_public_key_is_trusted_on_another_machine(
    keys: Keys, cli: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported line, a file with it and standard input do; then, not before, what the key
    signs there is verified here."""
    line = cli("keys", "export", keys("generate", "--sender", "planner")["keyid"]).out.strip()
    signer = places.trust_domain().signers.signer("planner", "local")
    raw = sign("test", b"payload", signer)
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "other"))
    here = places.trust_domain()

    def check() -> Any:
        return verify(raw, payload_type="test", purpose=Purpose.BATON, trust=here.trust)

    with pytest.raises(NotTrusted) as caught:
        check()
    assert caught.value.fault is TrustFault.UNKNOWN_KEY
    said = keys("trust", line, "--sender", "planner")
    assert (said["keyid"], said["line"], said["private"]) == (signer.keyid, line, False)
    assert check().key.speaks_for("planner", "local")
    path = tmp_path / "planner.pub"
    path.write_text(line + "\n", encoding="ascii")
    assert keys("trust", path, "--sender", "critic")["grants"] == [
        {"sender": "planner", "domain": "local"},
        {"sender": "critic", "domain": "local"},
    ]
    again = keys("trust", "-", "--sender", "critic", "--domain", "lab", stdin=line.encode())
    assert {"sender": "critic", "domain": "lab"} in again["grants"]
    keys("revoke", signer.keyid[:12])
    with pytest.raises(NotTrusted) as caught:
        check()
    assert caught.value.fault is TrustFault.KEY_REVOKED
    assert error(cli("keys", "trust", line, "--any", "--json"))["sentence"].endswith("stays so")


@pytest.mark.parametrize(
    "public", ["kvbaton-key ed25519 AAAA", "kvbaton-key rot13 AAAA " + "a" * 64, "no-such-file"]
)
def test_what_is_no_public_key_is_refused(keys: Keys, cli: Cli, public: str) -> None:
    """A cut line, an unknown scheme and a file that is not there."""
    said = error(cli("keys", "trust", public, "--any", "--json"))
    assert said["exit_code"] == 3
    assert keys("list")["keys"] == []


def test_rotation_and_revocation(keys: Keys, cli: Cli) -> None:
    """A rotated key is retired and another signs; revoking the last one says what follows."""
    first = keys("generate", "--any")["keyid"]
    rotated = keys("rotate", first[:10])
    assert rotated["retired"] == first
    second = rotated["key"]["keyid"]
    assert places.trust_domain().signers.signer("a", "local").keyid == second
    listed = {key["keyid"]: key for key in keys("list")["keys"]}
    assert listed[first]["status"] == "retired"
    for keyid, key in listed.items():
        if key["status"] == "trusted" and keyid != second:
            assert "warning" not in cli("keys", "revoke", keyid).err
    result = cli("keys", "revoke", second)
    assert "descend" in result.out
    assert "no private key here signs in domain 'local' any more" in result.err


def test_key_ids_must_name_one_key(keys: Keys, cli: Cli) -> None:
    """Neither none nor too few digits."""
    made = keys("generate", "--any")["keyid"]
    for short in ("", made[:3], "0" * 64):
        for command in ("export", "revoke", "rotate"):
            assert error(cli("keys", command, short, "--json"))["code"] == "input-error"
    assert keys("export", made[:8])["keyid"] == made


def test_a_passphrase_in_a_file(
    keys: Keys, cli: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given by option when the key is made, by the setting when it is used."""
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse\n", encoding="ascii")
    secret.chmod(0o600)
    made = keys("generate", "--sender", "planner", "--passphrase-file", secret)
    pem = data / "domains" / "keys" / f"{made['keyid']}.pem"
    assert "ENCRYPTED" in pem.read_text(encoding="ascii")
    said = error(cli("keys", "rotate", made["keyid"], "--json"))
    assert (said["code"], said["at"]) == ("settings-error", str(pem))
    monkeypatch.setenv("KVBATON_KEY_PASSPHRASE_FILE", str(secret))
    assert places.trust_domain().signers.signer("planner", "local").keyid == made["keyid"]
    assert keys("rotate", made["keyid"])["retired"] == made["keyid"]
    secret.chmod(0o644)
    said = error(cli("keys", "generate", "--any", "--json"))
    assert (said["at"], said["hint"]) == (str(secret), "chmod 600 it")


def test_what_a_domain_asks_for(keys: Keys, cli: Cli) -> None:
    """Each is set by itself; the list shows domains that ask for anything."""
    assert keys("domain", "--tickets")["tickets"]
    said = keys("domain", "--encryption", "--domain", "lab")
    assert said == {"domain": "lab", "tickets": False, "encryption": True}
    assert keys("list")["domains"] == {
        "lab": {"tickets": False, "encryption": True},
        "local": {"tickets": True, "encryption": False},
    }
    assert places.trust_domain().requirements.tickets
    assert "local: asks for tickets" in cli("keys", "list").out
    assert not keys("domain", "--no-tickets")["tickets"]


def test_a_damaged_trust_file_is_an_error_of_every_command(
    keys: Keys, cli: Cli, data: Path
) -> None:
    """It names the file and the place, and nothing is written over it."""
    keyid = keys("generate", "--any")["keyid"]
    path = data / "domains" / "trust.json"
    damaged = path.read_bytes().replace(b'"trusted"', b'"Trusted"', 1)
    path.write_bytes(damaged)
    for words in (
        ("list",), ("generate", "--any"), ("export", keyid), ("revoke", keyid), ("domain",)
    ):  # fmt: skip
        said = error(cli("keys", *words, "--json"))
        assert said["at"] == f"{path}: $.keys[0].status", words
    assert path.read_bytes() == damaged


def test_commands_print_what_the_reference_says(keys: Keys) -> None:
    """Every field, and no other."""
    made = keys("generate", "--any")
    assert names(made) == shape("keys generate")
    keys("domain", "--tickets")
    assert names(keys("list")) - {"local"} == shape("keys list")
    assert names(keys("export", made["keyid"])) == shape("keys export")
    assert names(keys("trust", made["line"], "--any")) == shape("keys trust")
    rotated = keys("rotate", made["keyid"])
    assert names(rotated) == shape("keys rotate")
    assert names(keys("revoke", rotated["key"]["keyid"])) == shape("keys revoke")
    assert names(keys("domain")) == shape("keys domain")
