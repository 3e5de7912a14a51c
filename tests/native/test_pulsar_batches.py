"""Batches of Apache Pulsar's clients to entries and back, against the plain model; and what is no batch."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.format.entry import Entry, verify
from engine._native.produce.hashing import MURMUR3_LOW, murmur3_32
from engine._native.pulsar.delivered import frame_of, key_hashes, schema_versions
from engine._native.pulsar.published import entries_of
from engine.errors import CorruptionError, EngineError, InvalidArgumentError, MessageTooLargeError
from tests.reference.entry_reference import PlainMessage
from tests.reference.pulsar_reference import PulsarMessage, batch_of, numbered, read_frame

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
KEYS = st.one_of(st.none(), st.text(max_size=20).map(str.encode), st.binary(max_size=20))


@st.composite
def messages(draw: st.DrawFn) -> PulsarMessage:
    key = draw(KEYS)
    as_bytes = key is not None and (draw(st.booleans()) or not _is_text(key))
    names = draw(st.lists(TEXT.filter(lambda name: not name.startswith("pulsar.")), unique=True, max_size=20))
    return PulsarMessage(
        value=draw(st.binary(max_size=100)),
        key=key,
        key_is_bytes=as_bytes,
        properties=tuple((name, draw(TEXT)) for name in names),
        event_time=draw(st.sampled_from([0, 1, 1_700_000_000_123, 2**62])),
        ordering_key=draw(st.one_of(st.none(), st.binary(max_size=300))),
        null_value=draw(st.booleans()),
    )


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def plain(entries: list[bytes]) -> list[PlainMessage]:
    found = []
    for entry in entries:
        assert verify(entry) == 1
        for m in Entry(entry).messages():
            found.append(PlainMessage(m.value, m.key, m.properties, m.event_time_ms, m.sequence_id, m.deliver_at_ms))
    return found


@settings(max_examples=50)
@given(
    st.lists(messages(), min_size=1, max_size=30),
    st.integers(0, 2**40),
    st.sampled_from([None, 1_700_000_000_000]),
    st.sampled_from([0, 1, 9, 10, 31]),
)
def test_a_batch_becomes_entries_and_comes_back(sent, sequence, deliver_at, version):
    more = {"deliver_at": deliver_at, "schema_version": version}
    entries = entries_of(batch_of(numbered(sent, sequence)), len(sent), b"p", **more)
    assert plain(entries) == [m.plain(sequence + i, deliver_at, version) for i, m in enumerate(sent)]
    runs = 1 + sum((a.key is None) != (b.key is None) for a, b in itertools.pairwise(sent))
    assert len(entries) == runs
    back = []
    for entry in entries:
        frame = read_frame(frame_of(Entry(entry), 7, None, partition=2, schema_version=b"12345678"))
        assert (frame.command.consumer, frame.command.message_id.partition) == (7, 2)
        assert frame.metadata.schema_version == (version.to_bytes(8, "big") if version else b"12345678")
        assert schema_versions(Entry(entry), None) == bytes([version]) * len(Entry(entry))
        assert frame.metadata.deliver_at == (deliver_at or 0)
        back += frame.messages
    expected = [
        PulsarMessage(
            m.value, m.key, m.key_is_bytes, m.properties, m.event_time, sequence + i, m.ordering_key, m.null_value
        )
        for i, m in enumerate(sent)
    ]
    assert back == expected


def test_sequence_ids_of_messages_are_kept_and_a_fall_begins_an_entry():
    sent = [PulsarMessage(b"v", b"k", sequence=n) for n in (5, 6, 9, 9, 4, 5)]
    entries = entries_of(batch_of(sent), 6, b"p", sequence=5)
    assert [len(Entry(entry)) for entry in entries] == [4, 2]
    assert [m.sequence_id for m in plain(entries)] == [5, 6, 9, 9, 4, 5]


def test_messages_that_may_be_stored_are_entries_of_their_own():
    sent = numbered([PulsarMessage(b"v", b"k") for _ in range(5)], 10)
    entries = entries_of(batch_of(sent), 5, b"p", stored=11)
    assert [len(Entry(entry)) for entry in entries] == [1, 1, 3]


def test_a_batch_that_is_too_large_for_an_entry_becomes_several():
    sent = numbered([PulsarMessage(bytes(3 << 20), b"k") for _ in range(5)])
    entries = entries_of(batch_of(sent), 5, b"p")
    assert len(entries) == 3
    assert len(plain(entries)) == 5


def test_messages_without_ids_of_their_own_have_that_of_the_batch():
    """Of one kind and bucket they make one entry, also where it may be stored: a second one would count as stored."""
    sent = [PulsarMessage(b"%d" % n, b"k%d" % n if n % 3 else None) for n in range(30)]
    for ends in ((0xFFFF,), (0x7FFF, 0xFFFF)):
        entries = entries_of(batch_of(sent), 30, b"p", sequence=7, stored=7, buckets=ends)
        assert len(entries) == len(ends) + 1
        assert {m.sequence_id for entry in entries for m in Entry(entry).messages()} == {7}
        assert sorted(int(m.value) for m in plain(entries)) == list(range(30))
    with pytest.raises(MessageTooLargeError, match="without sequence ids of their own must make one entry"):
        entries_of(batch_of([PulsarMessage(bytes(3 << 20), b"k")] * 5), 5, b"p")


def test_the_hash_of_a_key_is_murmur3():
    entry = Entry(entries_of(batch_of([PulsarMessage(b"v", b"order-42")]), 1, b"p")[0])
    assert murmur3_32(b"order-42") == 0x4B11A18E
    assert (entry.segment_hash_min, entry.bucket_min) == (0x4B11, 0xA18E)


def test_a_batch_of_several_buckets_becomes_an_entry_for_each_in_its_order():
    ends, keys = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF), [b"key-%d" % (n % 31) if n % 4 else None for n in range(60)]
    sent = [PulsarMessage(b"%d" % n, key) for n, key in enumerate(keys)]
    entries = [Entry(one) for one in entries_of(batch_of(sent), 60, b"p", buckets=ends, hashes=(0x4000, 0x7FFF))]
    found: dict[int, list[int]] = {}
    for entry in entries:
        (message, *_) = rows = plain([entry.data()])
        if message.key is None:
            bucket = 4
            assert 0x4000 <= entry.segment_hash_min == entry.segment_hash_max <= 0x7FFF
        else:
            (bucket,) = {next(i for i, end in enumerate(ends) if murmur3_32(m.key) & 0xFFFF <= end) for m in rows}
            assert entry.bucket_max <= ends[bucket]
        found.setdefault(bucket, []).extend(int(m.value) for m in rows)
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(60))
    assert len(entries) == len(found) == 5


def test_the_lower_half_of_the_hash_may_choose_the_segment():
    sent = batch_of([PulsarMessage(b"v", b"order-42")])
    entry = Entry(entries_of(sent, 1, b"p", key_hash=MURMUR3_LOW)[0])
    assert (entry.segment_hash_min, entry.bucket_min) == (0xA18E, 0x4B11)


def test_damage_of_a_batch_that_is_sorted_is_found():
    whole = batch_of([PulsarMessage(b"v%d" % n, b"k%d" % n) for n in range(5)])
    for bad in (whole[:-1], whole[:7], whole + b"x", b""):
        with pytest.raises(CorruptionError):
            entries_of(bad, 5, b"p", buckets=(0x7FFF, 0xFFFF))


def test_hashes_by_which_a_subscription_is_shared():
    sent = [PulsarMessage(b"v", b"a"), PulsarMessage(b"v", b"a", ordering_key=b"b"), PulsarMessage(b"v", b"b")]
    entry = Entry(entries_of(batch_of(sent), 3, b"p")[0])
    hashes = memoryview(key_hashes(entry, None)).cast("H").tolist()
    assert hashes == [murmur3_32(key) & 0xFFFF for key in (b"a", b"b", b"b")]


def test_some_of_an_entry_are_due():
    sent = [PulsarMessage(b"v", b"k")] * 70
    entry = Entry(entries_of(batch_of(sent), 70, b"p")[0])
    found = read_frame(frame_of(entry, 1, None, redelivered=3, due=[0, 63, 64, 69]))
    assert [word & (2**64 - 1) for word in found.command.ack_set] == [1 | 1 << 63, 1 | 1 << 5]
    assert found.command.redelivered == 3
    with pytest.raises(InvalidArgumentError, match="indices of an entry of 70"):
        frame_of(entry, 1, None, due=[70])


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["", "1", "2", "31", "01", "0", "32", "-1", "x", "111"]), min_size=2, max_size=70))
def test_an_entry_of_several_versions_is_no_frame_but_in_parts(texts):
    """Our clients may write what they like; what is no version is a property as others."""
    name = "pulsar.schema-version"
    sent = [PulsarMessage(b"v", b"k", properties=((name, text),) if text else ()) for text in texts]
    entry = Entry(entries_of(batch_of(sent), len(sent), b"p")[0])
    versions = [int(text) if text in ("1", "2", "31") else 0 for text in texts]
    assert schema_versions(entry, None) == bytes(versions)
    whole = frame_of(entry, 1, None, schema_version=b"first")
    assert (whole is None) == (len(set(versions)) > 1)
    for version in set(versions):
        due = [i for i, one in enumerate(versions) if one == version]
        frame = read_frame(frame_of(entry, 1, None, due=due, schema_version=b"first"))
        assert frame.metadata.schema_version == (version.to_bytes(8, "big") if version else b"first")
        for i, message in enumerate(frame.messages):
            assert message.properties == (((name, texts[i]),) if texts[i] and not versions[i] else ())


def test_a_version_that_no_topic_can_have_is_refused():
    with pytest.raises(InvalidArgumentError, match="a schema version must be below 32, got 32"):
        entries_of(batch_of([PulsarMessage()]), 1, b"p", schema_version=32)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (PulsarMessage(bytes((5 << 20) + 1)), "a value must have"),
        (PulsarMessage(b"", bytes((64 << 10) + 1)), "a key must have"),
        (PulsarMessage(b"", properties=(("n", "v" * (64 << 10)),)), "properties must have"),
        (PulsarMessage(b"", ordering_key=bytes(40_000)), "properties must have"),
    ],
)
def test_a_message_beyond_a_limit_is_refused_with_its_index(message, what):
    with pytest.raises(MessageTooLargeError, match=f"message 1 of the batch: {what}"):
        entries_of(batch_of([PulsarMessage(), message]), 2, b"p")


def test_what_is_no_batch_is_refused():
    good = batch_of([PulsarMessage(b"value", b"key", properties=(("a", "b"),))] * 3)
    for cut in range(len(good)):
        with pytest.raises(CorruptionError):
            entries_of(good[:cut], 3, b"p")
    with pytest.raises(CorruptionError, match="more bytes"):
        entries_of(good, 2, b"p")
    with pytest.raises(CorruptionError, match="it must be a size"):
        entries_of(good, 4, b"p")
    for count in (0, 65_536):
        with pytest.raises(InvalidArgumentError, match="1 to 65,535"):
            entries_of(good, count, b"p")
    with pytest.raises(InvalidArgumentError, match="producer's name"):
        entries_of(good, 3, bytes(257))
    with pytest.raises(CorruptionError, match="base64"):
        entries_of(batch_of([PulsarMessage(b"", b"abc", key_is_bytes=True)]).replace(b"YWJj", b"YW?j"), 1, b"p")


def test_sequence_ids_fit_63_bits():
    for batch, sequence in ((batch_of([PulsarMessage()]), 2**63), (batch_of([PulsarMessage(sequence=2**64 - 1)]), 0)):
        with pytest.raises(CorruptionError, match="below 2\\^63"):
            entries_of(batch, 1, b"p", sequence=sequence)
    assert len(entries_of(batch_of([PulsarMessage()]), 1, b"p", sequence=2**63 - 1)) == 1


def test_any_bytes_are_a_batch_or_an_error():
    rng = random.Random(7)
    good = batch_of([PulsarMessage(b"v" * i, b"k", properties=(("n", "v"),), ordering_key=b"o") for i in range(9)])
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            entries = entries_of(bytes(bad), 9, b"p")
        except EngineError:
            continue
        for entry in entries:
            read = frame_of(Entry(entry), 1, None)
            assert int.from_bytes(read[:4], "big") == len(read) - 4
