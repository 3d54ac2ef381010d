"""Tampered manifests: every field, under the old id or a new one, by whoever signs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attacks.scene import signed, stranger
from tests.attacks.tampering.pool import Case, Pool, Random, signature, tampering

from kvbaton.errors import FormatError
from kvbaton.seals import Signer
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton
from kvbaton.wire import manifest
from kvbaton.wire.canonical import dumps
from kvbaton.wire.digests import baton_id

Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of everything in a document that is no container, or an empty one."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    several = [((*path, name), item) for name, item in pairs]
    if not several:
        yield path
    for below, item in several:
        yield from leaves(item, below)


def changed_leaf(value: Any, rng: Random) -> Any:
    """Something else of the same kind, or of another one."""
    if isinstance(value, bool) or value is None:
        return "0e" * 32
    if isinstance(value, int):
        return rng.choice([value + 1, max(0, value - 1) if value else 7, value + (1 << 20)])
    if isinstance(value, str):
        if len(value) == 64:
            return "".join(rng.choices("0123456789abcdef", k=64))
        return rng.choice([value + "x", value[:-1] if len(value) > 1 else "y", f"x{value}"])
    return [*value, 0] if isinstance(value, list) else {"x": 0}


def mutated(payload: bytes, rng: Random, index: int) -> bytes:
    """The payload with one field changed: the index-th of all, so that each has its turn."""
    value = json.loads(payload)
    paths = list(leaves(value))
    path = paths[index % len(paths)]
    inside = value
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = changed_leaf(inside[path[-1]], rng)
    return dumps(value)


def is_manifest(payload: bytes) -> bool:
    """Whether it can be read."""
    try:
        manifest.parse_manifest(payload)
    except FormatError:
        return False
    return True


def wanted(pool: Pool, rng: Random, index: int, *, good: bool | None) -> tuple[Baton, bytes]:
    """A baton, and a changed payload of it that can be read, or cannot, or either."""
    while True:
        baton = pool.batons[index % len(pool.batons)]
        payload = mutated(manifest.unwrap(baton.envelope), rng, index // len(pool.batons))
        same = payload == manifest.unwrap(baton.envelope)
        if not same and good in (None, is_manifest(payload)):
            return baton, payload
        index += len(pool.batons)


def renamed(baton: Baton, payload: bytes, raw: bytes) -> Case:
    """The envelope under the id that its payload has."""
    name = baton_id(payload)
    return Case(baton, {Key(Kind.BATON, name): raw}, name)


def in_place(baton: Baton, raw: bytes) -> Case:
    """The envelope where the honest one lay."""
    return Case(baton, {Key(Kind.BATON, baton.id): raw})


@tampering("a field changed, under the old id", "not-trusted other-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, payload = wanted(pool, rng, index, good=None)
    return in_place(baton, manifest.wrap(payload, signatures=[signature(baton)]))


@tampering("a field changed, under its new id", "not-trusted signature-wrong")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, payload = wanted(pool, rng, index, good=None)
    return renamed(baton, payload, manifest.wrap(payload, signatures=[signature(baton)]))


def _signed_by(pool: Pool, rng: Random, index: int, signer: Signer, good: bool | None) -> Case:
    baton, payload = wanted(pool, rng, index, good=good)
    return renamed(baton, payload, signed(payload, signer))


@tampering("a field changed, signed by an unknown key", "not-trusted unknown-key")
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _signed_by(pool, rng, index, stranger(), None)


@tampering("a field changed, signed by another agent's key", "not-trusted signer-not-sender")
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _signed_by(pool, rng, index, pool.coder, True)


@tampering("a field changed, signed by a revoked key", "not-trusted key-revoked")
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _signed_by(pool, rng, index, pool.revoked, None)


@tampering("a field changed, signed by a key for tickets", "not-trusted signer-not-sender")
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _signed_by(pool, rng, index, pool.tickets_only, None)


@tampering("no manifest, signed by a trusted key", "unavailable manifest-corrupt")
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _signed_by(pool, rng, index, pool.coder if index % 2 else pool.planner, False)


@tampering("a field changed, not signed", "not-trusted unsigned")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, payload = wanted(pool, rng, index, good=None)
    return renamed(baton, payload, manifest.wrap(payload))


@tampering("the signature of another baton", "not-trusted signature-wrong")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, other = rng.sample(pool.batons, 2)
    if index % 2:
        payload = mutated(manifest.unwrap(baton.envelope), rng, index)
        raw = manifest.wrap(payload, signatures=[signature(other)])
        return renamed(baton, payload, raw)
    payload = manifest.unwrap(baton.envelope)
    return in_place(baton, manifest.wrap(payload, signatures=[signature(other)]))


@tampering("another baton under the id", "not-trusted other-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, other = rng.sample(pool.batons, 2)
    payload = manifest.unwrap(other.envelope)
    if index % 2:
        payload = mutated(payload, rng, index)
    return in_place(baton, signed(payload, pool.planner))
