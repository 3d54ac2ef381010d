"""Tickets: a tiny signed permission to take one baton (``docs/spec/ticket.md``).

Batons are reusable; a ticket says who may take one, when, and how often.  It is a statement of its
own type, so no baton can be passed off as a ticket, nor a ticket as a baton.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kvbaton.errors import Fault, FormatError, InputError, NotTrusted, TrustFault
from kvbaton.seals.base import Purpose, Signer, Trust
from kvbaton.seals.statement import parsed_quietly, sign, verify
from kvbaton.types import JSON
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.limits import FORMAT, MAX_TICKET_BYTES, MAX_USES

PAYLOAD_TYPE = "application/vnd.kvbaton.ticket+json"
CLOCK_SKEW_MS = 60_000
"""How far clocks of two machines may differ."""

_FIELDS = frozenset(
    {
        "audience",
        "baton",
        "domain",
        "expires_ms",
        "format",
        "issuer",
        "nonce",
        "not_before_ms",
        "uses",
    }
)
_NONCE_BYTES = 32
_INT_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says.

    ``issuer`` of ``domain`` lets ``audience`` take the baton with the id ``baton``; from
    ``not_before_ms`` until ``expires_ms`` (milliseconds since the epoch), ``uses`` times (0 for
    any number).  ``nonce`` is 64 random hexadecimal digits: no two tickets are alike.
    """

    baton: str
    issuer: str
    audience: str
    domain: str
    not_before_ms: int
    expires_ms: int
    uses: int
    nonce: str


def issue(
    baton: str,
    *,
    issuer: str,
    audience: str,
    domain: str,
    not_before_ms: int,
    expires_ms: int,
    uses: int,
    signer: Signer,
) -> str:
    """A signed ticket, as text that travels: one line of base64url.

    Raises
    ------
    InputError
        A field is out of range, or the ticket expires before it begins.
    """
    ticket = Ticket(
        baton=baton,
        issuer=issuer,
        audience=audience,
        domain=domain,
        not_before_ms=not_before_ms,
        expires_ms=expires_ms,
        uses=uses,
        nonce=secrets.token_hex(_NONCE_BYTES),
    )
    raw = sign(PAYLOAD_TYPE, encode_ticket(ticket), signer)
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def encode_ticket(ticket: Ticket) -> bytes:
    """The payload of a ticket: canonical bytes.

    Raises
    ------
    InputError
        It could not be read back.
    """
    value = {name: getattr(ticket, name) for name in _FIELDS if name != "format"}
    data = dumps(value | {"format": FORMAT}, what="ticket")
    try:
        parse_ticket(data)
    except FormatError as error:
        raise InputError(f"no ticket: {error.sentence}", at=error.at) from error
    return data


def parse_ticket(payload: bytes) -> Ticket:
    """Inverse of :func:`encode_ticket`.

    Raises
    ------
    FormatError
        With the path of what is wrong.
    """
    value = loads(payload, limit_bytes=MAX_TICKET_BYTES, what="ticket")
    f.require_format(value, "$", FORMAT)
    top: JSON = f.read_object(value, "$", _FIELDS)
    f.read_format(top["format"], "$.format", FORMAT)
    ticket = Ticket(
        baton=f.read_hex64(top, "baton", "$"),
        issuer=f.read_name(top, "issuer", "$"),
        audience=f.read_name(top, "audience", "$"),
        domain=f.read_name(top, "domain", "$"),
        not_before_ms=f.read_int(top, "not_before_ms", "$", 0, _INT_MAX),
        expires_ms=f.read_int(top, "expires_ms", "$", 1, _INT_MAX),
        uses=f.read_int(top, "uses", "$", 0, MAX_USES),
        nonce=f.read_hex64(top, "nonce", "$"),
    )
    if ticket.expires_ms <= ticket.not_before_ms:
        raise f.refuse("it expires before it begins", Fault.OUT_OF_RANGE, "$.expires_ms")
    return ticket


def check_ticket(
    text: str,
    *,
    baton: str,
    sender: str,
    audience: str,
    domain: str,
    now_ms: int,
    trust: Trust,
) -> Ticket:
    """The ticket, once everything but its uses is known to be right.

    Parameters
    ----------
    baton, sender
        Id of the baton that is to be taken, and who has signed it: only its sender lets it be
        taken.
    audience, domain
        Who takes it, and where.

    Raises
    ------
    NotTrusted
        With its own fault.
    """
    try:
        verified = verify(
            _decoded(text), payload_type=PAYLOAD_TYPE, purpose=Purpose.TICKET, trust=trust
        )
    except NotTrusted as error:
        why, hint = error.fault.value, error.hint
        raise _refuse(f"it cannot be verified ({why})", TrustFault.TICKET_INVALID, hint) from None
    ticket = parsed_quietly(parse_ticket, verified.payload)
    if isinstance(ticket, Fault):
        raise _refuse(f"it is no ticket ({ticket})", TrustFault.TICKET_INVALID)
    if ticket.baton != baton:
        raise _refuse("it is for another baton", TrustFault.TICKET_OTHER)
    if ticket.domain != domain:
        raise _refuse("it is for another trust domain", TrustFault.DOMAIN)
    if ticket.issuer != sender or not verified.key.speaks_for(sender, domain):
        raise _refuse("its signer may not let this baton be taken", TrustFault.SIGNER)
    if ticket.audience != audience:
        raise _refuse("it is for another receiver", TrustFault.TICKET_AUDIENCE)
    if now_ms < ticket.not_before_ms - CLOCK_SKEW_MS:
        raise _refuse("it is not valid yet", TrustFault.NOT_YET)
    if now_ms >= ticket.expires_ms:
        late_s = (now_ms - ticket.expires_ms) / 1000
        raise _refuse(f"it expired {late_s:.0f} s ago", TrustFault.TICKET_EXPIRED)
    return ticket


def spend(ticket: Ticket, keys: DomainKeys, claim: Callable[[str], bool]) -> None:
    """Use a ticket up once.

    Parameters
    ----------
    claim
        Told a name of 64 hexadecimal digits; True for exactly one caller of each name, ever.

    Raises
    ------
    NotTrusted
        All its uses are spent.
    """
    names = (keys.use_name(ticket.nonce, use) for use in range(ticket.uses))
    if ticket.uses and not any(map(claim, names)):
        raise _refuse("it is spent", TrustFault.TICKET_SPENT)


def _decoded(text: str) -> bytes:
    """The envelope in a ticket's text; what is no base64url is an empty one."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    spelled = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
    return raw if spelled == text and len(text) <= 2 * MAX_TICKET_BYTES else b""


def _refuse(why: str, fault: TrustFault, hint: str = "") -> NotTrusted:
    return NotTrusted(f"the ticket is refused: {why}", fault=fault, hint=hint)
