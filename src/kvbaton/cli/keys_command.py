"""``kvbaton keys``: private keys, whom to trust, and what a domain asks for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.inputs import read_text
from kvbaton.cli.output import JsonFlag, Output, age_text, print_table, visible
from kvbaton.errors import InputError, SettingsError
from kvbaton.seals import (
    Grant,
    KeyRing,
    KeyStatus,
    Purpose,
    SealScheme,
    TrustedKey,
    TrustEntry,
    key_id,
    local_keys,
    public_line,
    read_public_line,
)
from kvbaton.seals.base import ANYBODY
from kvbaton.seals.public import PREFIX, spell_public
from kvbaton.types import JSON

_KEY = """{"keyid", "scheme", "public", "line", "status", "private",
 "grants": [{"sender", "domain"}], "purposes", "added_ms", "note"}"""
SHAPES = {
    "generate": _KEY,
    "list": f'{{"file", "keys": [{_KEY}],\n "domains": {{NAME: {{"tickets", "encryption"}}}}}}',
    "trust": _KEY,
    "export": _KEY,
    "revoke": _KEY,
    "rotate": f'{{"retired", "key": {_KEY}}}',
    "domain": '{"domain", "tickets", "encryption"}',
}
"""What ``--json`` prints, for the reference; ``private``: its private half is here."""

_SHOWN = 16
"""Digits of key ids in tables; every command takes as many as make one unique."""

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEYID", help="The key's id, or the first digits of it.")
]
SendersOption = Annotated[
    list[str] | None,
    typer.Option("--sender", metavar="NAME", help="It speaks for this sender; may be repeated."),
]
AnyOption = Annotated[bool, typer.Option("--any", help="It speaks for everybody in the domain.")]
DomainOption = Annotated[
    str | None,
    typer.Option("--domain", metavar="NAME", help="Trust domain; by default the settings' own."),
]
PurposesOption = Annotated[
    list[Purpose] | None,
    typer.Option("--purpose", metavar="P", help="What it signs: baton or ticket; both by default."),
]
NoteOption = Annotated[str, typer.Option("--note", metavar="TEXT", help="A note for people.")]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="File (0600) with the passphrase that encrypts private keys; by default "
        "KVBATON_KEY_PASSPHRASE_FILE's.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Keys that sign, and keys that are trusted.", no_args_is_help=True)
    group.command("list")(keys_list)
    group.command("generate")(keys_generate)
    group.command("export")(keys_export)
    group.command("trust")(keys_trust)
    group.command("rotate")(keys_rotate)
    group.command("revoke")(keys_revoke)
    group.command("domain")(keys_domain)
    app.add_typer(group, name="keys")


def keys_list(as_json: JsonFlag = False) -> None:
    """List known keys: whose private half is here, for whom they speak, and their status."""
    output, ring = Output(as_json), _ring(None)
    entries = ring.trust.entries()
    domains = {
        name: {"tickets": wanted.tickets, "encryption": wanted.encryption}
        for name, wanted in ring.trust.domains().items()
    }
    said = {
        "file": str(ring.trust.path),
        "keys": [_to_json(ring, entry) for entry in entries],
        "domains": domains,
    }
    output.result(said, lambda console: _show_list(console, said))


def keys_generate(
    sender: SendersOption = None,
    anybody: AnyOption = False,
    domain: DomainOption = None,
    purpose: PurposesOption = None,
    scheme: Annotated[
        str, typer.Option("--scheme", metavar="NAME", help="Signature scheme.")
    ] = "ed25519",
    note: NoteOption = "",
    passphrase_file: PassphraseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key that signs for senders of a domain, and trust it here.

    Its private half never leaves the keys folder; `kvbaton keys export` prints the public one.
    """
    output, ring = Output(as_json), _ring(passphrase_file)
    grants = _grants(sender, domain, anybody=anybody)
    _ring(None).ready(_domain(domain))  # what signs for the others does not depend on the order
    key = ring.generate(
        grants,
        purposes=purpose or tuple(Purpose),
        scheme=scheme,
        note=note,
    )
    output.result(
        _found_json(ring, key), lambda console: _say(console, f"made {key.keyid}", _rights(key))
    )


def keys_export(keyid: KeyArgument, as_json: JsonFlag = False) -> None:
    """Print a public key as one line, for `kvbaton keys trust` on another machine."""
    output, ring = Output(as_json), _ring(None)
    key = ring.trust.resolve(keyid)
    output.result(_found_json(ring, key), lambda console: _say(console, public_line(key)))


def keys_trust(
    public: Annotated[
        str,
        typer.Argument(
            metavar="PUBLIC", help="The line that export prints, or a file with it; - reads it."
        ),
    ],
    sender: SendersOption = None,
    anybody: AnyOption = False,
    domain: DomainOption = None,
    purpose: PurposesOption = None,
    note: NoteOption = "",
    as_json: JsonFlag = False,
) -> None:
    """Trust somebody's public key for senders of a domain.

    Compare the key's id with its holder's by another way than the one the line came by. A key that
    is known already gets the senders and purposes besides its own.
    """
    output, ring = Output(as_json), _ring(None)
    scheme, found = _public(public)
    key = ring.trust.add(
        TrustedKey(
            key_id(scheme.name, found),
            scheme,
            found,
            _grants(sender, domain, anybody=anybody),
            frozenset(purpose or Purpose),
        ),
        note=note,
    )
    output.result(
        _found_json(ring, key), lambda console: _say(console, f"trusted {key.keyid}", _rights(key))
    )


def keys_rotate(
    keyid: KeyArgument, passphrase_file: PassphraseOption = None, as_json: JsonFlag = False
) -> None:
    """Put a new key in a key's place, with the same senders and purposes.

    The old one is retired: it signs no more, and what it has signed stays good. Other machines
    must trust the new key before they take what it signs.
    """
    output, ring = Output(as_json), _ring(passphrase_file)
    old = ring.trust.resolve(keyid)
    new = ring.rotate(old.keyid)
    output.result(
        {"retired": old.keyid, "key": _found_json(ring, new)},
        lambda console: _say(
            console, f"retired {old.keyid}", f"made {new.keyid}", _rights(new), public_line(new)
        ),
    )


def keys_revoke(keyid: KeyArgument, as_json: JsonFlag = False) -> None:
    """Void a key for good: everything it has signed, and every baton that descends from it.

    Running processes see it with their next take. Revoke on every machine that trusts the key.
    """
    output, ring = Output(as_json), _ring(None)
    key = ring.trust.revoke(ring.trust.resolve(keyid).keyid)
    for domain in sorted({grant.domain for grant in key.grants}):
        if not _signs(ring, domain):
            output.warn(
                f"no private key here signs in domain {domain!r} any more: kvbaton keys generate"
            )
    output.result(
        _found_json(ring, key),
        lambda console: _say(
            console,
            f"revoked {key.keyid}",
            "void from now on: all batons and tickets that it has signed, and all batons that "
            "descend from them",
        ),
    )


def keys_domain(
    domain: DomainOption = None,
    tickets: Annotated[
        bool | None,
        typer.Option(
            "--tickets/--no-tickets", help="Ask for a ticket for every take by another process."
        ),
    ] = None,
    encryption: Annotated[
        bool | None,
        typer.Option("--encryption/--no-encryption", help="Encrypt everything in the stores."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show, or set, what a trust domain asks for besides signatures."""
    output, ring, name = Output(as_json), _ring(None), _domain(domain)
    if tickets is None and encryption is None:
        wanted = ring.trust.requirements(name)
    else:
        wanted = ring.trust.require(name, tickets=tickets, encryption=encryption)
    said = {"domain": name, "tickets": wanted.tickets, "encryption": wanted.encryption}
    output.result(said, lambda console: _say(console, _asks(name, said)))


def _ring(passphrase_file: Path | None) -> KeyRing:
    chosen = settings.from_environment()
    return local_keys(chosen.domains, passphrase_file=passphrase_file or chosen.key_passphrase_file)


def _domain(given: str | None) -> str:
    """The domain that is named, held to what the setting may be."""
    if given is None:
        return settings.from_environment().domain
    try:
        return settings.from_environment({"KVBATON_DOMAIN": given}).domain
    except SettingsError as error:
        raise InputError(
            error.sentence.replace("KVBATON_DOMAIN", "the domain", 1), at="--domain"
        ) from error


def _grants(senders: list[str] | None, domain: str | None, *, anybody: bool) -> tuple[Grant, ...]:
    if anybody == bool(senders):
        raise InputError(
            "a key speaks for named senders or for everybody", hint="--sender NAME, or --any"
        )
    if ANYBODY in (senders or ()):
        raise InputError(f"{ANYBODY!r} is nobody's name", at="--sender", hint="--any")
    name = _domain(domain)
    return tuple(Grant(sender, name) for sender in dict.fromkeys(senders or [ANYBODY]))


def _public(given: str) -> tuple[SealScheme, bytes]:
    """A key that is given as a line, or the one in a file."""
    if given.split()[:1] == [PREFIX]:
        return read_public_line(given)
    try:
        return read_public_line(read_text(given, what="public key"))
    except InputError as error:
        raise InputError(error.sentence, at=error.at or given, hint=error.hint) from error


def _signs(ring: KeyRing, domain: str) -> bool:
    known = ring.trust.keys()
    return any(
        key.status is KeyStatus.TRUSTED
        and any(grant.domain == domain for grant in key.grants)
        and ring.has(key.keyid)
        for key in known
    )


def _found_json(ring: KeyRing, key: TrustedKey) -> JSON:
    entries = ring.trust.entries()
    return next(_to_json(ring, entry) for entry in entries if entry.key.keyid == key.keyid)


def _to_json(ring: KeyRing, entry: TrustEntry) -> JSON:
    key = entry.key
    return {
        "keyid": key.keyid,
        "scheme": key.scheme.name,
        "public": spell_public(key.public),
        "line": public_line(key),
        "status": key.status.value,
        "private": ring.has(key.keyid),
        "grants": [{"sender": grant.sender, "domain": grant.domain} for grant in key.grants],
        "purposes": sorted(purpose.value for purpose in key.purposes),
        "added_ms": entry.added_ms,
        "note": entry.note,
    }


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(visible(line), markup=False)


def _rights(key: TrustedKey) -> str:
    purposes = " and ".join(f"{purpose}s" for purpose in sorted(key.purposes))
    return f"it signs {purposes} of " + ", ".join(
        f"{_who(grant.sender)} in domain {grant.domain}" for grant in key.grants
    )


def _who(sender: str) -> str:
    return "everybody" if sender == ANYBODY else sender


def _asks(name: str, said: JSON) -> str:
    asked = [what for what in ("tickets", "encryption") if said[what]]
    return f"{name}: asks for {' and '.join(asked) or 'signatures only'}"


def _show_list(console: Console, said: JSON) -> None:
    headings = ("key", "status", "private", "speaks for", "signs", "age", "note")
    print_table(console, headings, map(_row, said["keys"]))
    for name, wanted in said["domains"].items():
        _say(console, _asks(name, wanted))


def _row(said: JSON) -> tuple[str, ...]:
    speaks = ", ".join(f"{g['sender']} in {g['domain']}" for g in said["grants"])
    age = age_text(time.time() - said["added_ms"] / 1000)
    here = "here" if said["private"] else "-"
    signs = ", ".join(said["purposes"])
    return said["keyid"][:_SHOWN], said["status"], here, speaks, signs, age, said["note"]
