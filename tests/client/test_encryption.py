"""Bodies encrypted by producers and decrypted by consumers: the bytes, their protection, and the keys."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine._native.consume.batch import decode_block
from engine._native.format.entry import Entry, compress, verify, walk
from engine._native.format.envelope import enclosed
from engine._native.produce.sealed import expand
from engine._native.serve import log
from engine._native.serve.delays import withheld
from engine._native.serve.parts import OpenEntry
from engine.client.base import encryption
from engine.client.base.encryption import ENTRIES_MAX, KEY_S_MAX, Decryptor, Encryptor, public_of
from engine.client.base.options import ConsumerOptions, ProducerOptions
from engine.errors import CorruptionError, DecryptionError, InvalidArgumentError, MissingKeyError, WrongKeyError
from engine.limits import ENVELOPE_SIZE_MAX
from engine.model.compression import ENCRYPTED, compressor, decompressor
from engine.testing.clock import FakeClock
from tests.kit.key_pairs import pair_of, rsa_pair, x25519, x25519_pair
from tests.reference.entry_reference import PlainMessage, Stamp, decode, encode, sealed, stamped
from tests.reference.envelope_reference import opened

STAMP = Stamp(segment_id=3, first_offset=1000, term=1, salt=7)
MESSAGES = [
    PlainMessage(b"value 0", b"order-1", {"a": "b"}, 1_700_000_000_000, 5, None),
    PlainMessage(b"x" * 100, b"order-2", {}, None, 7, 1_800_000_000_000),
    PlainMessage(b"", b"", {}, None, 8, None),
]
UNDELAYED = [PlainMessage(m.value, m.key, m.properties, m.event_time_ms, m.sequence_id) for m in MESSAGES]
ALICE, BOB, EVE = x25519_pair(1), x25519_pair(2), x25519_pair(3)
OTHER_CURVE = pair_of(ec.derive_private_key(5, ec.SECP256R1()))


def encryptor(*, clock: FakeClock | None = None, **keys: Any) -> Encryptor:
    return Encryptor(keys or {"alice": ALICE.public, "bob": BOB.public}, clock or FakeClock())


def rows(entry: Entry, open_body: Callable[[int, Any, int], bytes]) -> list[tuple[Any, ...]]:
    """What a consumer reads."""
    [found] = decode_block(stamped(entry.data(), STAMP), STAMP.salt, STAMP.segment_id, -1, open_body)
    return [
        (m.value, m.key, m.properties, m.event_time_ms, m.sequence_id, m.deliver_at_ms)
        for m in found.messages(open_body)
    ]


def plain_rows(messages: list[PlainMessage]) -> list[tuple[Any, ...]]:
    return [(m.value, m.key, m.properties, m.event_time_ms, m.sequence_id, m.deliver_at_ms) for m in messages]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("messages", [MESSAGES, UNDELAYED * 30])
def test_each_recipient_reads_what_was_encrypted(codec: str, messages: list[PlainMessage]):
    messages = [PlainMessage(m.value, m.key, m.properties, m.event_time_ms, i, m.deliver_at_ms)
                for i, m in enumerate(messages)]  # fmt: skip
    number, function = compressor(codec)
    data = encode(messages)
    packed = data if function is None else compress(data, number, function)
    rsa = rsa_pair()
    made = Entry(encryptor(alice=ALICE.public, rsa=rsa.public).encrypt(packed))
    assert (made.encrypted, made.compression) == (True, Entry(packed).compression)
    assert verify(made.data()) == 1
    assert log.entries(made.data())  # what a broker checks
    for keys in ({"alice": ALICE.private}, {"rsa": rsa.private}, {"nobody": EVE.private, "alice": ALICE.private}):
        assert rows(made, Decryptor(keys).open) == plain_rows(messages)


@given(st.lists(st.tuples(st.binary(max_size=40), st.none() | st.integers(0, 2**40)), min_size=1, max_size=30))
def test_the_bytes_are_those_of_the_page(content: list[tuple[bytes, int | None]]):
    messages = [PlainMessage(value, sequence_id=i, deliver_at_ms=at) for i, (value, at) in enumerate(content)]
    data = encode(messages)
    found = opened(encryptor().encrypt(data), "alice", x25519(1))
    assert found.plain == data[128:]
    assert len(found.recipients) == 2
    expected = [-(2**63) if at is None else at for _, at in content]
    assert list(found.deliver_at) == (expected if any(at is not None for _, at in content) else [])


def test_nothing_of_keys_values_and_properties_can_be_read():
    data = encryptor().encrypt(encode([PlainMessage(b"secret-value", b"secret-key", {"secret": "text"})]))
    assert b"secret" not in data


# -- tampering ---------------------------------------------------------------------------------------------------------


def read_anything(data: bytes) -> list[tuple[Any, ...]]:
    """As a consumer that is sent `data` with right checksums and a right stamp."""
    image = stamped(sealed(data), STAMP)
    [entry] = decode_block(image, STAMP.salt, STAMP.segment_id, -1, Decryptor({"alice": ALICE.private}).open)
    return rows(entry, Decryptor({"alice": ALICE.private}).open)


# Of the header, all that the producer sets but the checksums, which are made right again; of the body, every byte.
SECURED = [*range(8), *range(16, 80), *range(128, 128 + 700)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("bit", [1, 128])
def test_a_change_of_any_byte_is_found(codec: str, bit: int):
    number, function = compressor(codec)
    data = encode(MESSAGES if codec == "none" else [PlainMessage(b"x" * 500, b"k", {"a": "b"}, 3, 1)])
    data = encryptor().encrypt(data if function is None else compress(data, number, function))
    assert read_anything(data)
    for at in SECURED:
        if at < len(data):
            changed = bytearray(data)
            changed[at] ^= bit
            with pytest.raises((CorruptionError, DecryptionError)):
                read_anything(bytes(changed))


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
def test_no_mixture_of_two_entries_is_read(choice: st.DataObject):
    """The body of one under the header of another, and any cut of one into the other."""
    both = encryptor()
    first, second = (both.encrypt(encode([PlainMessage(text, sequence_id=n)])) for n, text in enumerate((b"a", b"b")))
    assert len(first) == len(second)
    at = choice.draw(st.integers(0, len(first)))
    mixed = first[:at] + second[at:]
    if mixed[:8] + mixed[16:80] + mixed[128:] in (x[:8] + x[16:80] + x[128:] for x in (first, second)):
        return
    with pytest.raises((CorruptionError, DecryptionError)):
        read_anything(mixed)


@pytest.mark.parametrize(
    ("at", "packed"),
    [
        (0, struct.pack("<I", 39)), (0, struct.pack("<I", 2**31)), (4, b"\x02"), (5, b"\x02"), (6, b"\0\0"),
        (6, b"\xff\0"), (20, b"\x01"), (40, b"\xff\xff"), (45, b"\x01"),
    ],
)  # fmt: skip
def test_a_broker_refuses_an_envelope_that_contradicts_its_body(at: int, packed: bytes):
    data = bytearray(encryptor().encrypt(encode(UNDELAYED)))
    data[128 + at : 128 + at + len(packed)] = packed
    with pytest.raises(CorruptionError, match="envelope"):
        log.entries(sealed(bytes(data)))


@given(st.binary(max_size=300), st.integers(0, 7), st.integers(0, 63))
def test_any_body_is_read_or_refused(body: bytes, codec: int, flags: int):
    body += bytes(-len(body) % 8)
    data = bytearray(encode([PlainMessage(b"")], flags=flags, body=body))
    data[18] = codec
    image = sealed(bytes(data))
    for check in (log.entries, lambda image: withheld(stamped(image, STAMP), 0, 100), enclosed):
        with contextlib.suppress(CorruptionError):
            check(image)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_missing_key_a_wrong_key_and_damage_are_three_errors():
    data = encryptor(alice=ALICE.public).encrypt(encode(UNDELAYED))
    entry = Entry(data)
    for keys in ({}, {"bob": BOB.private}):
        with pytest.raises(MissingKeyError, match="alice"):
            entry.messages(Decryptor(keys).open)
    with pytest.raises(MissingKeyError, match="decryption_keys"):
        entry.messages(decompressor())
    with pytest.raises(WrongKeyError, match="alice"):
        entry.messages(Decryptor({"alice": EVE.private}).open)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptionError, match="changed"):
        Entry(sealed(bytes(damaged))).messages(Decryptor({"alice": ALICE.private}).open)
    assert not issubclass(MissingKeyError, CorruptionError)
    assert not issubclass(WrongKeyError, MissingKeyError)
    assert len(entry.messages(Decryptor({"alice": ALICE.private}).open)) == len(UNDELAYED)


def test_each_entry_has_a_nonce_of_its_own_also_when_it_is_encrypted_again():
    made, data = encryptor(), encode(UNDELAYED)
    images = [made.encrypt(data) for _ in range(300)]
    images += [made.encrypt(expand(image, made.open)) for image in images]
    assert all(expand(image, made.open) == data for image in images)
    assert len({enclosed(image)[:2] for image in images}) == len(images)


def test_an_entry_is_moved_to_another_segment_under_a_new_nonce():
    """What a split does with entries that were not stored."""
    number, function = compressor("lz4")
    assert function is not None
    made, data = encryptor(), encode([PlainMessage(b"x" * 400, b"k%d" % i, sequence_id=i) for i in range(20)])
    image = made.encrypt(compress(data, number, function))
    assert expand(image, made.open) == data
    other = Encryptor({"alice": ALICE.public}, FakeClock())
    with pytest.raises(CorruptionError, match="given up"):
        expand(image, other.open)


def test_a_data_key_encrypts_so_many_entries_and_no_more(monkeypatch: pytest.MonkeyPatch):
    """Counted over those that are encrypted again, too; the nonces of each key begin anew."""
    assert ENTRIES_MAX == 2**32
    monkeypatch.setattr(encryption, "ENTRIES_MAX", 3)
    made, data = encryptor(), encode(UNDELAYED)
    images = [made.encrypt(data) for _ in range(4)]
    images += [made.encrypt(expand(image, made.open)) for image in images]
    keys = [ident for _, ident, *_ in map(enclosed, images)]
    assert [keys.count(ident) for ident in dict.fromkeys(keys)] == [3, 3, 2]
    nonces = [int.from_bytes(nonce, "big") for nonce, *_ in map(enclosed, images)]
    assert nonces == [0, 1, 2, 0, 1, 2, 0, 1]


def test_the_last_entry_of_a_data_key_is_the_one_before_its_limit():
    made, data = encryptor(), encode(UNDELAYED)
    key = made._current
    key._counter = itertools.count(ENTRIES_MAX - 2)
    found = [enclosed(made.encrypt(data))[:2] for _ in range(4)]
    numbers = [int.from_bytes(nonce, "big") for nonce, _ in found]
    assert numbers == [ENTRIES_MAX - 2, ENTRIES_MAX - 1, 0, 1]
    assert [ident == key.ident for _, ident in found] == [True, True, False, False]


def test_a_forked_process_has_a_data_key_of_its_own():
    made, data = encryptor(), encode(UNDELAYED)
    before = enclosed(made.encrypt(data))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            os.write(writer, pickle.dumps([enclosed(made.encrypt(data))[:2] for _ in range(3)]))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        forked = pickle.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    after = [enclosed(made.encrypt(data))[:2] for _ in range(3)]
    assert {key for _, key in forked}.isdisjoint({before[1], *(key for _, key in after)})
    assert {key for _, key in after} == {before[1]}
    assert len({*forked, before[:2], *after}) == 7


def test_a_data_key_serves_an_hour_and_then_public_keys_are_looked_up_again():
    clock, keys = FakeClock(), {"alice": ALICE.public}
    made, data = Encryptor(keys, clock), encode(UNDELAYED)
    first = made.encrypt(data)
    keys["bob"] = BOB.public
    clock.advance(KEY_S_MAX - 1)
    assert enclosed(made.encrypt(data))[1] == enclosed(first)[1]
    clock.advance(2)
    second = made.encrypt(data)
    assert enclosed(second)[1] != enclosed(first)[1]
    assert [name for name, *_ in enclosed(second)[2]] == [b"alice", b"bob"]
    assert expand(first, made.open) == expand(second, made.open) == data
    keys["bob"] = b"no key at all"
    clock.advance(KEY_S_MAX)
    assert [name for name, *_ in enclosed(made.encrypt(data))[2]] == [b"alice", b"bob"]  # with those of before


def test_a_consumer_is_given_further_keys_while_it_lives():
    keys = {"alice": ALICE.private}
    found = Decryptor(keys)
    entry = Entry(encryptor(bob=BOB.public).encrypt(encode(UNDELAYED)))
    with pytest.raises(MissingKeyError):
        entry.messages(found.open)
    keys["bob"] = BOB.private
    assert len(entry.messages(found.open)) == len(UNDELAYED)


def test_keys_are_read_from_files(tmp_path: Path):
    (tmp_path / "public.pem").write_bytes(ALICE.public)
    (tmp_path / "private.pem").write_bytes(ALICE.private)
    made = encryptor(alice=tmp_path / "public.pem")
    entry = Entry(made.encrypt(encode(UNDELAYED)))
    assert entry.messages(Decryptor({"alice": tmp_path / "private.pem"}).open)
    assert entry.messages(Decryptor({"alice": ALICE.private.decode()}).open)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        encryptor(alice=tmp_path / "missing.pem")


@pytest.mark.parametrize(
    "key",
    [b"", "text", 7, None, ALICE.private, rsa_pair(1024).public, OTHER_CURVE.public],
)  # fmt: skip
def test_what_is_no_public_key_is_refused_and_never_shown(key: Any):
    with pytest.raises(InvalidArgumentError, match="'alice' in encryption_keys must be") as caught:
        encryptor(alice=key)
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize("key", [b"", 7, ALICE.public, rsa_pair(1024).private])
def test_what_is_no_private_key_is_refused_and_never_shown(key: Any):
    entry = Entry(encryptor(alice=ALICE.public).encrypt(encode(UNDELAYED)))
    with pytest.raises(InvalidArgumentError, match="'alice' in decryption_keys must be") as caught:
        Decryptor({"alice": key})
    with pytest.raises(WrongKeyError, match="'alice' in decryption_keys must be") as later:
        entry.messages(Decryptor(MappingProxyType({"alice": key})).open)
    assert "BEGIN" not in str(caught.value) + str(later.value)


@pytest.mark.parametrize("keys", [{}, {"n" * 257: ALICE.public}, {"": ALICE.public}, {f"n{i}": b"" for i in range(65)}])
def test_names_and_their_number_are_limited(keys: dict[str, Any]):
    with pytest.raises(InvalidArgumentError, match="encryption_keys"):
        Encryptor(keys, FakeClock())


def test_keys_are_in_no_repr():
    shown = repr(ProducerOptions(encryption_keys={"alice": ALICE.public}))
    shown += repr(ConsumerOptions("c", "i", decryption_keys={"alice": ALICE.private}))
    assert "BEGIN" not in shown
    with pytest.raises(InvalidArgumentError, match="encryption_keys must be a mapping"):
        ProducerOptions(encryption_keys=["alice"])  # type: ignore[arg-type]


def test_who_can_read_messages_can_encrypt_for_itself():
    made = Encryptor(public_of({"alice": ALICE.private, "rsa": rsa_pair().private}), FakeClock())
    entry = Entry(made.encrypt(encode(UNDELAYED)))
    assert entry.messages(Decryptor({"rsa": rsa_pair().private}).open)


def test_the_largest_envelope_is_within_its_limit():
    names = [f"{i:0256}" for i in range(64)]
    made = Encryptor(dict.fromkeys(names, rsa_pair().public), FakeClock())
    data = encode([PlainMessage(b"", sequence_id=i, deliver_at_ms=1) for i in range(1000)])
    added = len(made.encrypt(data)) - len(data)
    assert added - 8 * 1000 + 64 * (1024 - 256) < ENVELOPE_SIZE_MAX - 8 * 65_535


# -- what brokers do with it -------------------------------------------------------------------------------------------


def test_the_broker_sees_when_messages_are_due_and_nothing_else():
    plain = stamped(encode(MESSAGES), STAMP)
    secret = stamped(encryptor().encrypt(encode(MESSAGES)), STAMP)
    assert withheld(secret, 1_790_000_000_000, 100) == withheld(plain, 1_790_000_000_000, 100) != []
    with pytest.raises((CorruptionError, DecryptionError)):
        OpenEntry(secret, STAMP.salt, decompressor())
    [before], [after] = walk(plain), walk(secret)
    for name in ("count", "first_sequence", "last_sequence", "bucket_min", "bucket_max", "segment_hash_min", "flags"):
        assert getattr(before, name) == getattr(after, name)


# -- golden ------------------------------------------------------------------------------------------------------------

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "entries"


@pytest.mark.parametrize(("name", "compression"), [("v1-encrypted.entry", 0), ("v1-encrypted-zstd.entry", 2)])
def test_what_the_first_version_encrypted_is_read(name: str, compression: int):
    data = (GOLDEN / name).read_bytes()
    [entry] = decode_block(data, 0xC0FFEE, 42, 1000, Decryptor({"alice": ALICE.private}).open)
    assert (entry.encrypted, entry.compression, entry.first_offset) == (True, compression, 1000)
    expected = MESSAGES if compression == 0 else [PlainMessage(b"x" * 500, b"key", {"a": "b"}, 3, 1)]
    assert rows(entry, Decryptor({"alice": ALICE.private}).open) == plain_rows(expected)
    found = opened(data, "alice", x25519(1))
    if not compression:
        assert decode(encode(MESSAGES)[:128] + found.plain) == expected
    assert entry.compression | ENCRYPTED == data[18]
