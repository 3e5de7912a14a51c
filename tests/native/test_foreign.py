"""Entries that only clients of Apache Pulsar can read: their form, who may open them, and what lies about them."""

from __future__ import annotations

import struct

import pytest

from engine._native.format.crc32c import crc32c
from engine._native.format.entry import Entry
from engine._native.format.envelope import enclosed
from engine._native.format.heads import all_encrypted, groups_in
from engine._native.produce.hashing import MURMUR3, key32, xxh64
from engine._native.pulsar.delivered import frame_of, key_hashes
from engine._native.pulsar.foreign import foreign_entry, sent_metadata
from engine._native.serve.delays import withheld
from engine._native.serve.log import entries
from engine.errors import CorruptionError, DecryptionError, InvalidArgumentError, MessageTooLargeError
from engine.limits import ENTRY_SIZE_MAX
from engine.model.compression import decompressor
from tests.kit.peer import make_entries

CONTENT = struct.pack(">I", 3) + b"abc" + b"payload"
BODY, AT_CIPHER, AT_ZERO, AT_RECIPIENTS = 128, 5, 20, 6
PART = 4  # of a kind


def sealed(entry: bytes, at: int, value: bytes) -> bytes:
    """With bytes of its body changed, and checksums that hold."""
    changed = bytearray(entry)
    changed[BODY + at : BODY + at + len(value)] = value
    changed[12:16] = struct.pack("<I", crc32c(bytes(changed[BODY:])))
    changed[8:12] = struct.pack("<I", crc32c(bytes(changed[12:80])))
    return bytes(changed)


@pytest.mark.parametrize("size", range(4, 13))
@pytest.mark.parametrize("deliver_at", [None, 7])
def test_it_is_the_header_an_envelope_and_what_was_sent(size: int, deliver_at: int | None) -> None:
    content = (struct.pack(">I", 0) + b"12345678")[:size]
    data = foreign_entry(content, 3, b"p", 5, 7, encrypted=True, key=b"k", deliver_at=deliver_at, transaction=9)
    entry = Entry(data)
    assert data.endswith(content)
    assert len(data) % 8 == 0
    assert (entry.count, entry.first_sequence, entry.last_sequence) == (3, 5, 7)
    assert (entry.producer_id, entry.txn, entry.raw_size) == (xxh64(b"p"), (9, 0), size)
    assert entry.bucket_min == entry.bucket_max == key32(b"k", MURMUR3) & 0xFFFF
    assert entry.segment_hash_min == entry.segment_hash_max == key32(b"k", MURMUR3) >> 16
    (claim,) = entries(data, transaction=(9, 0))
    assert (claim.kind, claim.count) == (3, 3)  # keyed and transactional
    assert withheld(data, 0, 1) == ([] if deliver_at is None else [(7, 0, 3)])
    frame = frame_of(entry, 1, None)
    assert frame.endswith(struct.pack(">I", crc32c(content)) + content)


def test_a_chunk_which_others_follow_is_a_kind_of_its_own_and_chunks_of_a_message_are_a_group() -> None:
    kinds, block, starts = [], b"", []
    for n in range(3):
        data = foreign_entry(CONTENT, 1, b"p", n, n, encrypted=False, chunk=(b"uuid", n), part=n < 2)
        kinds.append(entries(data)[0].kind)
        starts.append(len(block))
        block += data
    assert kinds == [PART, PART, 0]
    (plain,) = make_entries([b"a"])
    group = xxh64(b"uuid")
    assert groups_in(block) == {start: (group, n == 0) for n, start in enumerate(starts)}
    assert groups_in(plain + block) == {start + len(plain): (group, n == 0) for n, start in enumerate(starts)}
    assert groups_in(plain) == groups_in(foreign_entry(CONTENT, 1, b"p", 0, 0, encrypted=True)) == {}


def test_key_shared_goes_by_the_ordering_key_then_the_key() -> None:
    for key, ordering, wanted in ((b"k", b"o", b"o"), (b"k", None, b"k"), (None, b"o", b"o"), (None, None, None)):
        entry = Entry(foreign_entry(CONTENT, 2, b"p", 0, 1, encrypted=True, key=key, ordering_key=ordering))
        low = 0 if wanted is None else key32(wanted, MURMUR3) & 0xFFFF
        assert list(memoryview(key_hashes(entry, None)).cast("H")) == [low, low]


def test_only_what_is_encrypted_passes_as_encrypted() -> None:
    for encrypted in (True, False):
        for part in (True, False):
            data = foreign_entry(CONTENT, 1, b"p", 0, 0, encrypted=encrypted, part=part)
            assert all_encrypted(data) is encrypted
            assert not all_encrypted(data[:-1])


@pytest.mark.parametrize(("encrypted", "text"), [(True, "encrypted by a client"), (False, "in chunks by a client")])
def test_who_opens_it_is_told_what_it_is(encrypted: bool, text: str) -> None:
    data = foreign_entry(CONTENT, 1, b"p", 0, 0, encrypted=encrypted)
    for read in (
        lambda: Entry(data).messages(decompressor()),
        lambda: Entry(data).messages(None),
        lambda: enclosed(data),
    ):
        with pytest.raises(DecryptionError, match=text) as raised:
            read()
        assert type(raised.value) is DecryptionError
        assert (raised.value.segment_id, raised.value.offsets) == (0, (0, 0))
    assert Entry(data).foreign
    assert not Entry(make_entries([b"a"])[0]).foreign


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, struct.pack("<I", 2**32 - 1)),
        (0, struct.pack("<I", 39)),
        (0, struct.pack("<I", 48)),
        (4, b"\x02"),
        (AT_CIPHER, b"\x00"),
        (AT_CIPHER, b"\x01"),
        (AT_CIPHER, b"\x06"),
        (AT_RECIPIENTS, b"\x01\x00"),
        (AT_ZERO, b"\x01"),
    ],
    ids=["giant", "small", "wide", "version", "none", "ours", "unknown", "recipients", "zero"],
)
def test_an_envelope_that_lies_is_refused_and_read_by_nobody(at: int, value: bytes) -> None:
    data = foreign_entry(CONTENT, 1, b"p", 0, 0, encrypted=True)
    lying = sealed(data, at, value)
    with pytest.raises(CorruptionError, match="envelope"):
        entries(lying)
    with pytest.raises(CorruptionError):
        sent_metadata(Entry(lying))


def test_metadata_that_are_not_there_are_damage_for_their_reader() -> None:
    """The broker does not look behind the envelope: a client of ours may have stored it."""
    data = foreign_entry(CONTENT, 1, b"p", 0, 0, encrypted=True)
    assert sent_metadata(Entry(data)) == b"abc"
    lying = sealed(data, len(data) - BODY - len(CONTENT), struct.pack(">I", len(CONTENT) - 3))
    entries(lying)
    for read in (lambda: sent_metadata(Entry(lying)), lambda: frame_of(Entry(lying), 1, None)):
        with pytest.raises(CorruptionError, match="must lie within"):
            read()
    (plain,) = make_entries([b"a"])
    with pytest.raises(CorruptionError):
        sent_metadata(Entry(plain))


def test_what_cannot_be_an_entry_is_refused() -> None:
    for count, first, last, content, error in (
        (0, 0, 0, CONTENT, InvalidArgumentError),
        (65_536, 0, 65_535, CONTENT, InvalidArgumentError),
        (1, 1, 0, CONTENT, InvalidArgumentError),
        (1, 2**63, 2**63, CONTENT, InvalidArgumentError),
        (1, 0, 0, b"\x00\x00\x00", InvalidArgumentError),
        (1, 0, 0, b"\x00\x00\x00\x01", InvalidArgumentError),
        (1, 0, 0, bytes(ENTRY_SIZE_MAX), MessageTooLargeError),
    ):
        with pytest.raises(error):
            foreign_entry(content, count, b"p", first, last, encrypted=True)
