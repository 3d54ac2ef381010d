"""What encryption promises: frames bound to their place, refused when anything is off."""

import itertools
import struct

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import file_bytes, run_segment

from kvbaton.errors import Fault, FormatError, InputError, StoreError
from kvbaton.seals.encryption import DomainCipher
from kvbaton.stores import EncryptedStore, Key, Kind, MemoryStore
from kvbaton.stores import encrypted as module
from kvbaton.testing import FaultyStore
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.frames import (
    MAGIC,
    MAX_FRAMES,
    TAG_BYTES,
    Frame,
    FrameTable,
    segment_pieces,
    stored_bytes,
    table_end,
)
from kvbaton.wire.segment import read_header

CIPHER = DomainCipher(DomainKeys(bytes(range(32))))
OTHER = DomainCipher(DomainKeys(bytes(range(1, 33))))
SEGMENT = run_segment()
KEY = Key(Kind.SEGMENT, SEGMENT.address)
PLAIN = file_bytes(SEGMENT)
FRAMES = 1 + len(SEGMENT.header.ranges)
BATON = Key(Kind.BATON, "ab" * 32)
TEXT = b"The plan, and who made it. " * 3


def put(key=KEY, parts=SEGMENT.parts, *, cipher=CIPHER):
    """The store under the encryption, with one object."""
    inner = MemoryStore()
    EncryptedStore(inner, cipher).put(key, parts)
    return inner


def stored(inner, key=KEY):
    """The bytes as they lie there."""
    return inner.get(key, limit_bytes=1 << 30)


def laid(data, key=KEY):
    """An encrypted store in which these bytes lie."""
    inner = MemoryStore()
    inner.put(key, [data])
    return EncryptedStore(inner, CIPHER)


def read_all(store, key=KEY):
    """Every byte of an object."""
    return store.get(key, limit_bytes=1 << 30)


def refused(store, key=KEY):
    """The refusal of an object whose bytes are not as they were encrypted."""
    with pytest.raises(FormatError) as caught:
        read_all(store, key)
    assert caught.value.fault is Fault.DECRYPTION
    assert str(key) in caught.value.sentence
    return caught.value


# --- what is stored ------------------------------------------------------------------------------


def test_a_segment_is_a_frame_for_its_header_and_one_for_each_layer_range():
    """Sizes follow from the segment alone, so encrypted bytes are as deterministic as it is."""
    data = stored(put())
    assert len(data) == stored_bytes(FRAMES, len(PLAIN))
    assert int.from_bytes(data[12:16], "little") == FRAMES
    body = SEGMENT.header.body_start
    sizes = [body, *(part.stop - part.start for part in SEGMENT.header.ranges)]
    assert segment_pieces(PLAIN, len(PLAIN)) == sizes


def test_equal_objects_give_equal_bytes():
    """However an object is cut into parts, and whoever encrypts it."""
    again = DomainCipher(DomainKeys(bytes(range(32))))
    header, body = PLAIN[: SEGMENT.header.body_start], PLAIN[SEGMENT.header.body_start :]
    expected = stored(put())
    assert stored(put(cipher=again)) == expected
    assert stored(put(parts=[header, body])) == expected
    assert (
        stored(put(parts=[header, *(body[i : i + 7] for i in range(0, len(body), 7))])) == expected
    )


@pytest.mark.parametrize(
    ("key", "parts", "digest"),
    [
        (KEY, SEGMENT.parts, "95deccd2fc635fb515111e9001cb4a0f1f19a3263d2395e257faea7c4110c9c3"),
        (BATON, [TEXT], "a0c26daeab26cd9ede73656e22103426771f17cce05eac46b66295331aa31654"),
    ],
)
def test_the_format_is_the_one_that_is_written_down(key, parts, digest):
    """Stored bytes stay what they are: a change here is a change of the format."""
    assert blake3(stored(put(key, parts), key)).hexdigest() == digest


def test_the_specification_is_enough_to_decrypt_an_object():
    """docs/spec/encryption.md, followed step by step without any of our code."""
    data, place = stored(put(BATON, [TEXT]), BATON), str(BATON).encode()

    def derived(secret, purpose):
        return blake3(secret, derive_key_context=f"kvbaton format 1 {purpose}").digest()

    secret = derived(bytes(range(32)), "encryption")
    table = data[:16] + data[48:88]
    framed = len(place).to_bytes(4, "little") + place + table
    assert data[:12] == b"kvbaton-enc\x01" and data[12:16] == bytes([1, 0, 0, 0])
    assert blake3(framed, key=derived(secret, "encrypted table")).digest() == data[16:48]
    size, digest = int.from_bytes(data[48:56], "little"), data[56:88]
    described = place + struct.pack("<IIQI", 0, 1, size, len(place))
    drawn = blake3(digest + described, key=derived(secret, "frame key")).digest(length=44)
    plain = AESGCM(drawn[:32]).decrypt(drawn[32:], data[88:], None)
    assert plain == TEXT and len(plain) == size
    assert blake3(plain + described, key=derived(secret, "frame digest")).digest() == digest


def test_nothing_of_the_plaintext_is_stored():
    """No eight bytes in a row, except where they are all zero."""
    data = stored(put())
    windows = {PLAIN[i : i + 8] for i in range(len(PLAIN) - 8)} - {bytes(8)}
    assert not any(window in data for window in windows)


def test_other_keys_other_places_and_other_bytes_share_nothing():
    """No eight bytes in a row are shared by objects of two domains, kinds, names or contents."""
    variants = [
        stored(put(BATON, [TEXT]), BATON),
        stored(put(BATON, [TEXT], cipher=OTHER), BATON),
        stored(put(Key(Kind.TRANSCRIPT, BATON.name), [TEXT]), Key(Kind.TRANSCRIPT, BATON.name)),
        stored(put(Key(Kind.BATON, "cd" * 32), [TEXT]), Key(Kind.BATON, "cd" * 32)),
        stored(put(BATON, [TEXT[:-1] + b"!"]), BATON),
    ]
    head = table_end(0) - 32 + 8  # magic and count, and the length of the only frame
    windows = [
        {data[i : i + 8] for i in range(16, len(data) - 8) if not 48 <= i < 56} for data in variants
    ]
    assert head == 24
    for one, other in itertools.combinations(windows, 2):
        assert not one & other


def test_a_second_put_encrypts_nothing(monkeypatch):
    """What is there is recognized by its table."""
    store = EncryptedStore(put(), CIPHER)
    monkeypatch.setattr(module, "_encrypt", lambda *_: pytest.fail("encrypted again"))
    assert store.put(KEY, SEGMENT.parts) == 0


@pytest.mark.parametrize(
    "foreign", [PLAIN, b"", b"x", MAGIC, MAGIC + bytes(500), stored(put(cipher=OTHER))]
)
def test_what_is_not_ours_is_refused_absent_and_replaced(foreign):
    """Plaintext, garbage and another key's bytes: read as an error, put over."""
    store = laid(foreign)
    refused(store)
    assert not store.exists(KEY)
    assert store.put(KEY, SEGMENT.parts) == len(PLAIN)
    assert store.exists(KEY)
    assert read_all(store) == PLAIN


def test_plaintext_is_named_as_such():
    """The refusal says that the object is not encrypted, and quotes nothing of it."""
    error = refused(laid(TEXT, BATON), BATON)
    assert "unencrypted" in error.sentence
    assert "plan" not in str(error)


def test_a_truncated_object_is_replaced():
    """A power failure may have cut it: the next put repairs it, as in a store of plain bytes."""
    store = laid(stored(put())[:-1])
    assert store.put(KEY, SEGMENT.parts) == len(PLAIN)
    assert read_all(store) == PLAIN


def test_another_writer_that_does_not_encrypt_never_wins():
    """Somebody who puts plaintext again and again makes a put fail, not pass."""

    class Rival(MemoryStore):
        def put(self, key, parts):
            super().put(key, [PLAIN])
            return 0

    with pytest.raises(StoreError, match="do not encrypt"):
        EncryptedStore(Rival(), CIPHER).put(KEY, SEGMENT.parts)


def test_a_frame_that_is_too_large_is_refused(monkeypatch):
    """Beyond what one call encrypts, before anything is allocated."""
    monkeypatch.setattr(module, "MAX_FRAME_BYTES", len(TEXT) - 1)
    inner = MemoryStore()
    with pytest.raises(InputError, match="too large to be encrypted"):
        EncryptedStore(inner, CIPHER).put(BATON, [TEXT])
    assert not inner.exists(BATON)


# --- what is read --------------------------------------------------------------------------------


@given(offset=st.integers(0, len(PLAIN)), size=st.integers(0, len(PLAIN)))
def test_any_range_is_read_exactly(offset, size):
    """Whatever frames it touches."""
    size = min(size, len(PLAIN) - offset)
    with EncryptedStore(put(), CIPHER).open(KEY) as reader:
        assert reader.size_bytes == len(PLAIN)
        assert reader.read(offset, size) == PLAIN[offset : offset + size]


@given(st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, 300)), max_size=8))
def test_ranges_in_any_order_are_read_exactly(ranges):
    """The frame that is kept from the last read is never another one's."""
    with EncryptedStore(put(), CIPHER).open(KEY) as reader:
        for offset, size in ranges:
            assert reader.read(offset, min(size, len(PLAIN) - offset)) == PLAIN[offset:][:size]


def test_one_range_asks_for_one_frame(monkeypatch):
    """A layer is read without the others: exactly its frame is asked of the store below."""
    monkeypatch.setattr(module, "_FIRST_READ_BYTES", 64)
    watched = FaultyStore(put())
    with EncryptedStore(watched, CIPHER).open(KEY) as reader:
        opened = watched.count("read")
        part = SEGMENT.header.ranges[1]
        reader.read(SEGMENT.header.body_start + part.start, part.stop - part.start)
    (call,) = watched.calls[-1:]
    assert watched.count("read") == opened + 1
    assert call.size_bytes == part.stop - part.start + TAG_BYTES
    assert call.offset + call.size_bytes == stored_bytes(FRAMES, len(PLAIN))


def test_a_header_is_read_without_the_first_layer():
    """Its end is the end of a frame, and readers say so."""
    watched = FaultyStore(put())
    with EncryptedStore(watched, CIPHER).open(KEY) as reader:
        header = read_header(
            reader.read, file_size=reader.size_bytes, first_bytes=reader.head_bytes
        )
    assert header == SEGMENT.header
    assert watched.count("read") == 1  # the table; the header came with it


def test_an_object_is_read_and_its_table_believed_by_one_request():
    """A small object needs one read; there is none for its table alone."""
    watched = FaultyStore(put(BATON, [TEXT]))
    assert read_all(EncryptedStore(watched, CIPHER), BATON) == TEXT
    assert watched.count("read") == 1


# --- what is refused -----------------------------------------------------------------------------


def test_every_flipped_byte_of_a_small_object_is_refused():
    """Magic, count, authenticator, length, digest, ciphertext, tag: every byte has a meaning."""
    data = stored(put(BATON, [TEXT]), BATON)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        refused(laid(bytes(changed), BATON), BATON)


@given(place=st.integers(0, stored_bytes(FRAMES, len(PLAIN)) - 1), mask=st.integers(1, 255))
def test_every_change_of_a_segment_is_refused(place, mask):
    """Whatever byte is changed in whatever way."""
    changed = bytearray(stored(put()))
    changed[place] ^= mask
    refused(laid(bytes(changed)))


@given(st.integers(0, stored_bytes(FRAMES, len(PLAIN)) - 1))
def test_every_truncation_is_refused(size):
    """Shorter by any number of bytes."""
    refused(laid(stored(put())[:size]))


@given(st.binary(min_size=1, max_size=70))
def test_trailing_bytes_are_refused(extra):
    """Longer by whatever."""
    refused(laid(stored(put()) + extra))


@given(st.binary(max_size=300))
def test_garbage_is_refused(data):
    """Bytes of any kind, with and without the magic."""
    refused(laid(data))
    refused(laid(MAGIC + data))


def test_the_right_bytes_in_another_place_are_refused():
    """An object of another name or kind, from the same domain."""
    data = stored(put(BATON, [TEXT]), BATON)
    for key in (Key(Kind.BATON, "cd" * 32), Key(Kind.TRANSCRIPT, BATON.name)):
        refused(laid(data, key), key)


def cut(data):
    """Table parts and frames of a stored segment."""
    table = FrameTable(
        [
            Frame(b"", index, FRAMES, size)
            for index, size in enumerate(segment_pieces(PLAIN, len(PLAIN)))
        ]
    )
    starts = [*(table.stored_start(index) for index in range(FRAMES)), len(data)]
    rows = [data[48 + 40 * i : 88 + 40 * i] for i in range(FRAMES)]
    return data[:48], rows, [data[a:b] for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize(
    "order", [(0, 2, 1), (1, 0, 2), (2, 1, 0), (0, 1), (0, 1, 1), (0, 1, 2, 2)]
)
@pytest.mark.parametrize("with_rows", [True, False])
def test_frames_cannot_be_swapped_dropped_or_doubled(order, with_rows):
    """With their rows in the table, the count put right, or alone."""
    head, rows, frames = cut(stored(put()))
    count = len(order).to_bytes(4, "little")
    head = head[:12] + (count if with_rows else head[12:16]) + head[16:]
    kept = [rows[i] for i in order] if with_rows else rows
    refused(laid(head + b"".join(kept) + b"".join(frames[i] for i in order)))


def test_frames_of_another_version_of_the_object_do_not_fit():
    """A segment with one other layer under the same name: none of its frames can be mixed in."""
    changed = bytearray(PLAIN)
    changed[-1] ^= 1
    one, other = stored(put()), stored(put(parts=[bytes(changed)]))
    head, rows, frames = cut(one)
    _, others, foreign = cut(other)
    assert rows[:-1] == others[:-1]  # the frames that are equal are the same bytes
    assert frames[:-1] == foreign[:-1]
    refused(laid(head + b"".join(rows) + b"".join([*frames[:-1], foreign[-1]])))
    refused(laid(head + b"".join([*rows[:-1], others[-1]]) + b"".join([*frames[:-1], foreign[-1]])))


def test_a_table_of_absurd_size_is_refused_before_it_is_read():
    """The count is held to a limit and to the file's size before anything is allocated for it."""
    watched = FaultyStore(MemoryStore())
    for count in (0, MAX_FRAMES + 1, 2**32 - 1):
        key = Key(Kind.SEGMENT, f"{count:064x}")
        watched.put(key, [MAGIC + count.to_bytes(4, "little") + bytes(400_000)])
        refused(EncryptedStore(watched, CIPHER), key)
        assert watched.calls[-1].size_bytes <= 16 << 10


def test_lengths_that_the_keys_themselves_have_authenticated_are_limited():
    """Even a table of ours that claims a terabyte allocates nothing."""
    place = str(BATON).encode()
    for sizes in ([1 << 40], [1 << 63], [1 << 31] * 3, [5]):
        frames = [Frame(place, i, len(sizes), size, bytes(32)) for i, size in enumerate(sizes)]
        refused(laid(FrameTable(frames).encode(CIPHER, place) + bytes(40), BATON), BATON)


def test_a_failed_decryption_leaves_nothing_in_the_buffer():
    """The caller's memory holds no byte that was not authenticated."""
    changed = bytearray(stored(put()))
    changed[-1] ^= 1
    part = SEGMENT.header.ranges[-1]
    buffer = bytearray(b"\xee" * (part.stop - part.start))
    with laid(bytes(changed)).open(KEY) as reader, pytest.raises(FormatError):
        reader.read_into(SEGMENT.header.body_start + part.start, memoryview(buffer))
    assert bytes(buffer) in (bytes(len(buffer)), b"\xee" * len(buffer))


def test_a_digest_that_does_not_fit_its_plaintext_is_refused():
    """A writer with the keys that lies about the synthetic IV: found, except in layer ranges."""
    place = str(BATON).encode()
    frame = Frame(place, 0, 1, len(TEXT), bytes(32))
    out = memoryview(bytearray(len(TEXT) + TAG_BYTES))
    CIPHER.encrypt(frame, TEXT, out)
    error = refused(laid(FrameTable([frame]).encode(CIPHER, place) + bytes(out), BATON), BATON)
    assert error.at == "$.frames[0]"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b'{"__metadata__":{"kvbaton":"{}"}}',
        b'{"__metadata__":{"kvbaton":5}}',
        b'{"__metadata__":{"kvbaton":"{\\"ranges\\":[]}"}}',
        b'{"__metadata__":{"kvbaton":"{\\"ranges\\":[{\\"start\\":0,\\"stop\\":\\"a\\"}]}"}}',
        b'{"__metadata__":{"kvbaton":"{\\"ranges\\":[{\\"start\\":0,\\"stop\\":9}]}"}}',
        b'{"__metadata__":{"kvbaton":"{\\"ranges\\":[{\\"start\\":8,\\"stop\\":64}]}"}}',
    ],
)
def test_what_is_no_segment_is_one_frame(header):
    """Bytes of kind segment that cannot be cut are encrypted and read as a whole."""
    text = header + b" " * (-(8 + len(header)) % 64)
    data = len(text).to_bytes(8, "little") + text + bytes(64)
    assert segment_pieces(data, len(data)) == [len(data)]
    store = EncryptedStore(MemoryStore(), CIPHER)
    store.put(KEY, [data])
    assert read_all(store) == data
