"""Keyed addresses, token digests and prefix keys."""

from __future__ import annotations

import itertools
import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import FUNCTION, KEYS, SECRET

from kvbaton.errors import FormatError, InputError
from kvbaton.wire.digests import (
    DomainKeys,
    baton_id,
    parts_digest,
    range_digest,
    token_bytes,
)

IDS = st.lists(st.integers(0, (1 << 32) - 1), max_size=40)


def derived(purpose: str) -> bytes:
    """The key of one purpose, by the specification."""
    return blake3(SECRET, derive_key_context=f"kvbaton format 1 {purpose}").digest()


def test_token_ids_are_packed_as_little_endian_words() -> None:
    """Each id is four bytes, the lowest first."""
    assert token_bytes([1, 258, 4_294_967_295]) == bytes([1, 0, 0, 0, 2, 1, 0, 0, *[255] * 4])


@given(IDS)
def test_digests_are_what_the_specification_says(ids: list[int]) -> None:
    """Each digest is keyed BLAKE3 with the key derived for its purpose."""
    packed = struct.pack(f"<{len(ids)}I", *ids)
    assert KEYS.token_digest(ids) == blake3(packed, key=derived("token digest")).hexdigest()
    address = blake3(packed, key=derived("segment address")).hexdigest()
    assert KEYS.segment_address(packed) == address
    address = blake3(packed, key=derived("transcript address")).hexdigest()
    assert KEYS.transcript_address(packed) == address
    (key,) = KEYS.prefix_keys(FUNCTION, ids, [len(ids)])
    whole = bytes.fromhex(FUNCTION) + packed
    assert key == blake3(whole, key=derived("prefix key")).hexdigest()


@given(IDS, st.data())
def test_prefix_keys_do_not_depend_on_the_segmentation(ids: list[int], data: st.DataObject) -> None:
    """The key at a position is the same however the ids before it were cut."""
    stops = sorted(data.draw(st.lists(st.integers(0, len(ids)), min_size=1)))
    keys = KEYS.prefix_keys(FUNCTION, ids, stops)
    assert keys == [KEYS.prefix_keys(FUNCTION, ids[:stop], [stop])[0] for stop in stops]


def test_purposes_domains_functions_and_tokens_all_matter() -> None:
    """No two of: other purpose, other domain, other function, other token share a digest."""
    ids, other = [1, 2, 3], DomainKeys(bytes(32))
    found = [
        KEYS.token_digest(ids),
        KEYS.token_digest([1, 2, 4]),
        other.token_digest(ids),
        KEYS.segment_address(token_bytes(ids)),
        KEYS.transcript_address(token_bytes(ids)),
        *KEYS.prefix_keys(FUNCTION, ids, [2, 3]),
        *KEYS.prefix_keys("0f" * 32, ids, [3]),
        *other.prefix_keys(FUNCTION, ids, [3]),
        range_digest(token_bytes(ids)),
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("ids", [[1, -1], [1, 1 << 32], [1, 1.5], [1, "2"], [1, None]])
def test_other_things_than_token_ids_are_refused(ids: list[object]) -> None:
    """A token id is an integer of 32 bits without sign; the place of another thing is said."""
    with pytest.raises(InputError) as caught:
        KEYS.token_digest(ids)  # type: ignore[arg-type]
    assert caught.value.at == "$[1]"


@pytest.mark.parametrize("stops", [[3, 2], [5], [-1]])
def test_stops_ascend_within_the_ids(stops: list[int]) -> None:
    """Stops that go back or leave the ids are the caller's mistake."""
    with pytest.raises(InputError):
        KEYS.prefix_keys(FUNCTION, [1, 2, 3, 4], stops)


def test_a_function_digest_is_64_hexadecimal_digits() -> None:
    """Anything else would make the boundary between function and tokens unclear."""
    with pytest.raises(FormatError):
        KEYS.prefix_keys("f0", [1], [1])


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_parts_hash_like_their_concatenation(parts: list[bytes]) -> None:
    """Hashing parts one by one equals hashing them joined, which is plain BLAKE3."""
    whole = b"".join(parts)
    assert parts_digest(parts) == range_digest(memoryview(whole)) == blake3(whole).hexdigest()
    assert baton_id(whole) == blake3(whole).hexdigest()


def test_blake3_of_nothing_is_the_published_value() -> None:
    """The first bytes of BLAKE3 of the empty input are those of its specification."""
    assert range_digest(b"").startswith("af1349b9f5f9a1a6a0404dea36dcc949")


def test_the_secret_is_never_shown() -> None:
    """Neither repr nor str of the keys holds the secret or a derived key."""
    secrets = [SECRET, *map(derived, ("segment address", "prefix key", "token digest"))]
    shown = repr(KEYS) + str(KEYS)
    assert not any(s.hex() in shown or repr(s) in shown for s in secrets)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_has_32_bytes(size: int) -> None:
    """Any other size is refused."""
    with pytest.raises(InputError):
        DomainKeys(bytes(size))


def test_domains_with_the_same_secret_are_equal() -> None:
    """Equality is by secret."""
    assert DomainKeys(SECRET) == KEYS
    assert all(a != b for a, b in itertools.combinations([KEYS, DomainKeys(bytes(32))], 2))
