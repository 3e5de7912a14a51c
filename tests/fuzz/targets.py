"""Every decoder of bytes that come from elsewhere: how it is called, from what seeds, and what it may raise.

`decode` has to look at all of what it made: lazy parts count. What it raises has to be a typed error, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from pyroaring import BitMap64

from engine._native.consume.batch import MessageBatch, decode_block
from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.opening import take_block
from engine._native.format.crc32c import crc32c
from engine._native.format.entry import verify, walk
from engine._native.serve import log
from engine._native.serve.undecided import runs_of
from engine.broker.cluster.segment_calls import unpack_args, unpack_spec
from engine.broker.upkeep.offline import read_log
from engine.client.base.encryption import Decryptor, Encryptor
from engine.client.topic.layout import TopicLayout
from engine.clock import SystemClock
from engine.errors import (
    AuthenticationError,
    CorruptionError,
    DecryptionError,
    EngineError,
    InvalidArgumentError,
    InvalidConfigurationError,
    MissingKeyError,
    ProtocolError,
    UnsupportedError,
)
from engine.metadata.wal import find_damage
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.compression import decompressor
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.limits import Limits
from engine.model.load import SegmentLoadStats
from engine.model.names import SegmentName, TopicName, parse_namespace
from engine.model.policies import NamespacePolicies
from engine.model.positions import Checkpoint, MessageId
from engine.model.schema import SchemaHistory, TopicSchema
from engine.model.subscriptions import ConsumerRegistration, SubscriptionMetadata
from engine.model.transactions import TransactionHeader, TransactionOperation, parse_id
from engine.storage.cursor import cursor, visibility
from engine.storage.dedup.dedup import Dedup
from engine.storage.file.format import Closing, Footer, Opening, State
from engine.storage.file.index import Index
from engine.storage.file.recovery import recover
from engine.testing.disk import SimDisk
from engine.testing.maps import packed
from engine.wire.commands import Command, ScalableTopicUpdate, decode
from tests.fuzz import certificate_seeds, import_decoders, pulsar_decoders, stored_decoders, token_seeds
from tests.fuzz.frame_decoders import cut, frame_seeds, frames, greet
from tests.kit.key_pairs import x25519_pair
from tests.reference.entry_reference import PlainMessage, Stamp, encode, sealed
from tests.reference.hostile_entries import FORMS

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
STAMP = Stamp(segment_id=3, first_offset=100, publish_time_ms=1_700_000_000_000, term=2, durable_upto=90, salt=77)
SALT = 77
PAIR_ERRORS = (InvalidArgumentError, ProtocolError, UnsupportedError)


@dataclass(frozen=True)
class Target:
    """`reseal` makes the checksums of a mutated image right again, so that what is behind them is reached."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    errors: tuple[type[BaseException], ...] = (EngineError,)
    reseal: Callable[[bytes], bytes] = bytes


# -- entries -----------------------------------------------------------------------------------------------------------


def entries(data: bytes) -> int:
    """As a consumer gets them: everything of every message, and the columns."""
    found = decode_block(data, STAMP.salt, STAMP.segment_id, -1, decompressor())
    batch = MessageBatch("t", [(e, 0, e.count) for e in found], {}, lambda *_: None)
    for message in batch:
        assert len(message.value) + len(message.key or b"") == message.size
        assert message.properties is not None
        assert isinstance(message.producer_name, str)
    batch.to_arrow().validate(full=True)
    return len(batch)


def taken(data: bytes) -> int:
    """The same by a consumer that goes on behind what is bad: nothing is raised, and the good ones can be read."""
    found, lost = take_block(data, STAMP.salt, STAMP.segment_id)
    queue = EntryQueue("t", lambda *_: None, None, None, decompressor())
    assert queue.push(found if lost is None else [*found, lost]) == queue.messages
    count = 0
    while queue.messages:
        try:
            batch = queue.pop_batch(7)
        except CorruptionError:
            assert queue.damaged(drop=True) is not None
            continue
        except MissingKeyError:  # it stays for one that has the key
            break
        count += len(batch.values)
        assert len(batch.keys) == len(batch)
    return count


def published(data: bytes) -> object:
    """As a broker gets them from a producer. Consumers can read all that it takes and can see through."""
    found = log.entries(data), walk(data), verify(data)
    if not any(entry.compression for entry in found[1]):
        for entry in found[1]:
            assert len(entry.messages()) == entry.count
    return found


@cache
def entry_seeds() -> list[bytes]:
    """Written by the first release of the format, and by the reference."""
    rich = [
        PlainMessage(b"value", b"key", {"a": "b"}, 1, 5, 2),
        PlainMessage(b"", b"", {}, None, 7, None),
        PlainMessage(b"x" * 30, b"order-42", {"ü": "", "n": "1"}, -1, 8, 3),
    ]
    golden = [path.read_bytes() for path in sorted((GOLDEN / "entries").iterdir())]
    golden += [form.make(0) for form in FORMS if len(form.make(0)) < 4096]
    return [encode(rich), encode([PlainMessage(b"ab", sequence_id=i) for i in range(3)]), *golden]


def decrypted(data: bytes) -> object:
    """By a consumer that has the private key. The envelope and the ciphertext come from elsewhere, and may lie."""
    found = decode_block(data, STAMP.salt, STAMP.segment_id, -1, Decryptor({"alice": x25519_pair(1).private}).open)
    return [(m.value, m.key, m.properties) for entry in found for m in entry.messages()]


@cache
def encrypted_seeds() -> list[bytes]:
    encryptor = Encryptor({"bob": x25519_pair(2).public, "alice": x25519_pair(1).public}, SystemClock())
    return [sealed(encryptor.encrypt(image), STAMP) for image in entry_seeds()[:2]]


def reseal_entry(data: bytes) -> bytes:
    """With the stamp that a consumer expects."""
    return sealed(data, STAMP) if len(data) >= 128 else data


# -- the segment log ---------------------------------------------------------------------------------------------------


def crc_at(at: int, start: int, seed: int = 0) -> Callable[[bytes], bytes]:
    """Put the checksum of what is behind `start` at `at`."""

    def reseal(data: bytes) -> bytes:
        image = bytearray(data)
        if len(image) >= start:
            image[at : at + 4] = crc32c(image[start:], seed).to_bytes(4, "little")
        return bytes(image)

    return reseal


def crc_behind(seed: int) -> Callable[[bytes], bytes]:
    """The last four bytes are the checksum of what is before."""
    return lambda data: data[:-4] + crc32c(data[:-4], seed).to_bytes(4, "little")


def reseal_footer(data: bytes) -> bytes:
    """Of the size that it claims."""
    size = int.from_bytes(data[4:8], "little")
    if not 48 <= size <= len(data):
        return data
    crc = crc32c(data[:8] + b"\0\0\0\0" + data[12:size], SALT)
    return data[:8] + crc.to_bytes(4, "little") + data[12:]


def dedup(data: bytes) -> object:
    """A snapshot, as of the segment itself and as of a parent."""
    for from_parent in (False, True):
        made = Dedup(HashRange(0, 0xFFFF), (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF))
        made.load(data, from_parent=from_parent)
        made.snapshot()
    return made


@cache
def logs() -> list[bytes]:
    """Whole files, written by the first release of the format."""
    return [path.read_bytes() for path in sorted((GOLDEN / "logs").rglob("*.log"))]


def parts_of_logs() -> tuple[list[bytes], list[bytes]]:
    """(footers, snapshots) of the golden files that were closed."""
    footers, snapshots = [], []
    for data in logs():
        opening = Opening.unpack(data[:64], "golden")
        closing = Closing.unpack(data[64:128], opening.salt)
        if closing is not None:
            image = data[closing.end_position : closing.end_position + closing.footer_size]
            footer = Footer.unpack(image, opening.salt)
            if footer is not None:
                footers.append(Footer(State.ROLLED, footer.end_offset, 0, footer.index, footer.snapshot).pack(SALT))
                snapshots.append(footer.snapshot)
    return footers, [s for s in snapshots if s]


def whole_log(data: bytes) -> object:
    """A directory of golden files with this one in the place that it claims, opened as after a crash."""
    try:
        opening = Opening.unpack(data[:64], "it")
        segment, first = (opening.segment_id, opening.first_offset) if opening.segment_id in (5, 6) else (5, 0)
    except EngineError:
        segment, first = 5, 0
    folder = GOLDEN / "logs" / ("v1-sealed" if segment == 6 else "v1")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    disk = SimDisk(random.Random(1)).mount()
    disk.make_directories("/d")
    for file_name, content in {**files, f"{first}.log": data}.items():
        file = disk.create(f"/d/{file_name}")
        file.write([content], 0)
        file.close()
    buckets = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF) if segment == 5 else (0xFFFF,)
    return recover(disk, "/d", TopicName.parse("t").segment(HashRange(0, 0xFFFF), segment), buckets)


def inspected(data: bytes) -> object:
    """The same offline, as `engine inspect` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.log"
        path.write_bytes(data)
        return read_log(path)


# -- facts -------------------------------------------------------------------------------------------------------------

RECORDS: list[tuple[str, Callable[[bytes], Any]]] = [
    ("layout", SegmentLayout.from_json),
    ("subscription", SubscriptionMetadata.from_json),
    ("registration", ConsumerRegistration.from_json),
    ("policies", NamespacePolicies.from_json),
    ("limits", lambda value: Limits.of("public", value)),
    ("schemas", SchemaHistory.from_json),
    ("load", SegmentLoadStats.from_json),
    ("transaction", TransactionHeader.from_json),
    ("operation", TransactionOperation.from_json),
]


def json_values(decode: Callable[[bytes], Any]) -> Callable[[bytes], object]:
    """What was read can be written, and reads the same."""

    def again(data: bytes) -> object:
        first = decode(data)
        assert decode(first.to_json()).to_json() == first.to_json()
        return first

    return again


@cache
def record_seeds() -> list[bytes]:
    """Whatever a broker leaves in its metadata store."""
    from tests.fuzz.activity import some_metadata

    return [value for value in asyncio.run(some_metadata()) if value.startswith(b"{")]


def dag(data: bytes) -> object:
    """A layout as a client is told it."""
    said = {"session_id": 1, "topic": "t", "epoch": 0, "dag": unpack_args(data)}
    header = decode(Command.SCALABLE_TOPIC_UPDATE, packed(Command.SCALABLE_TOPIC_UPDATE, said).packed)
    assert isinstance(header, ScalableTopicUpdate)
    return TopicLayout.from_dag(TopicName.parse("t"), header.dag)


def dag_seeds() -> list[bytes]:
    segment = {
        "segmentId": 0, "hashRange": {"start": 0, "end": 65535}, "state": "ACTIVE", "parentIds": [], "childIds": [],
        "bucketBoundaries": [16383, 32767, 49151, 65535],
    }  # fmt: skip
    found = {"epoch": 3, "keyHash": "xxh64", "durability": "fsync", "createdAtMs": 5, "segments": [segment],
             "segmentBrokers": {"0": "engine://a:1"}, "controllerBrokerUrl": "engine://a:1"}  # fmt: skip
    return [msgpack.packb(found)]


def spec_seeds() -> list[bytes]:
    name = "segment://public/default/t/0000-ffff-0"
    return [msgpack.packb({"spec": {"name": name, "durability": "fsync", "bucket_ends": [65535], "sealed": False}})]


def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """A name as typed."""
    return lambda data: parse(data.decode(errors="surrogateescape"))


def mapping(of: Callable[[Any], object]) -> Callable[[bytes], object]:
    """The body of a request, which is JSON."""

    def decode(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return of(value) if isinstance(value, dict) else None

    return decode


def position_seeds() -> list[bytes]:
    place = Checkpoint({0: 7, 3: 2**40}, epoch=4, topic="topic://public/default/t", topic_created_ms=9)
    return [place.to_bytes(), Checkpoint.earliest().to_bytes(), MessageId(3, 5, {0: 1, 3: 6}, "t").to_bytes()]


def reseal_position(data: bytes) -> bytes:
    """Version, kind, checksum, body."""
    return data[:2] + zlib.crc32(data[6:]).to_bytes(4, "little") + data[6:]


def _set() -> BitMap64:
    return BitMap64([1, 5, 100, 2**33, *range(1000, 9000, 2), *range(2**40, 2**40 + 70_000)])


def reseal_cursor(data: bytes) -> bytes:
    """Cursors and visibility records: magic, checksum, the rest."""
    return crc_at(4, 8)(data)


def wal_seeds() -> list[bytes]:
    """Of a database with some commits that were not checkpointed."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(Path(folder) / "x.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
        for i in range(3):
            database.execute("INSERT INTO t VALUES (?)", (f"value {i}" * 40,))
        found = (Path(folder) / "x.db-wal").read_bytes()
        database.close()
    return [found]


def index(data: bytes) -> object:
    made = Index.unpack(data[: len(data) // 24 * 24])
    assert made.pack() == data[: len(data) // 24 * 24]
    return made


def _targets() -> list[Target]:
    footers, snapshots = parts_of_logs()
    opening = [data[:64] for data in logs()]
    closing = [Closing(State.ROLLED, 12, 4096, 160, 5).pack(SALT)]
    stored = [cursor.pack(7, _set(), 3), cursor.pack(0, BitMap64())]
    seen = [visibility.pack(9, BitMap64([3, 4]), _set(), 2)]
    records = [Target(f"record-{n}", json_values(d), record_seeds, (CorruptionError,)) for n, d in RECORDS]
    return [
        Target("frame", frames, frame_seeds, (ProtocolError,)),
        Target("frame-cut", cut, frame_seeds, (ProtocolError,)),
        Target("frame-first", greet, frame_seeds, (ProtocolError,)),
        Target("entry", entries, entry_seeds, (CorruptionError, MissingKeyError), reseal_entry),
        Target("entry-taken", taken, entry_seeds, (), reseal_entry),
        Target("entry-runs", runs_of, entry_seeds, (CorruptionError, InvalidArgumentError), reseal_entry),
        Target("entry-decrypted", decrypted, encrypted_seeds, (CorruptionError, DecryptionError), reseal_entry),
        Target("token", token_seeds.by_set, token_seeds.seeds, (AuthenticationError,)),
        Target("token-pem", token_seeds.by_pem, token_seeds.seeds, (AuthenticationError,)),
        Target("token-keys", token_seeds.keys, token_seeds.key_files, (InvalidConfigurationError,)),
        Target("certificate", certificate_seeds.shown, certificate_seeds.seeds, ()),
        Target("authorities", certificate_seeds.authorities, certificate_seeds.pems, (InvalidConfigurationError,)),
        Target("entry-published", published, entry_seeds, (EngineError,), sealed_unstamped),
        Target("pulsar-batch", pulsar_decoders.batch, pulsar_decoders.batch_seeds),
        Target("pulsar-payload", pulsar_decoders.payload, pulsar_decoders.payload_seeds, reseal=pulsar_decoders.summed),
        Target("pulsar-send", pulsar_decoders.send, pulsar_decoders.send_seeds, reseal=pulsar_decoders.resummed_send),
        Target(
            "pulsar-dealt",
            pulsar_decoders.dealt,
            pulsar_decoders.dealt_seeds,
            (CorruptionError, DecryptionError),
            reseal_entry,
        ),
        Target(
            "pulsar-migrated", pulsar_decoders.migrated, pulsar_decoders.migrated_seeds, reseal=pulsar_decoders.resummed
        ),
        Target("pulsar-schema", pulsar_decoders.schema, pulsar_decoders.schema_seeds),
        Target("pulsar-pair", pulsar_decoders.pair, pulsar_decoders.pair_seeds, PAIR_ERRORS),
        Target("pulsar-protobuf", pulsar_decoders.protobuf, pulsar_decoders.protobuf_seeds),
        Target("pulsar-command", pulsar_decoders.commands, pulsar_decoders.command_seeds, (ProtocolError,)),
        Target("log-opening", lambda d: Opening.unpack(d, "x"), lambda: opening, (EngineError,), crc_behind(0)),
        Target("log-closing", lambda d: Closing.unpack(d, SALT), lambda: closing, (), crc_behind(SALT)),
        Target("log-footer", lambda d: Footer.unpack(d, SALT), lambda: footers, (), reseal_footer),
        Target("log-index", index, lambda: [bytes(range(240))], ()),
        Target("log-dedup", dedup, lambda: snapshots, (CorruptionError,)),
        Target("log-whole", whole_log, logs, (CorruptionError, EngineError)),
        Target("log-inspected", inspected, logs, (EngineError,)),
        Target("cursor", lambda d: cursor.unpack(d, "k"), lambda: stored, (EngineError,), reseal_cursor),
        Target("visibility", lambda d: visibility.unpack(d, "k"), lambda: seen, (EngineError,), reseal_cursor),
        Target("wal", find_damage, wal_seeds, ()),
        Target("checkpoint", Checkpoint.from_bytes, position_seeds, (EngineError,), reseal_position),
        Target("message-id", MessageId.from_bytes, position_seeds, (EngineError,), reseal_position),
        Target("layout-told", dag, dag_seeds, (EngineError,)),
        Target("call", lambda d: unpack_spec(unpack_args(d)), spec_seeds, (EngineError,)),
        Target("topic-name", text(TopicName.parse), lambda: [b"topic://public/default/orders", b"a/b/c"]),
        Target("segment-name", text(SegmentName.parse), lambda: [b"segment://public/default/orders/0000-ffff-1"]),
        Target("namespace", text(parse_namespace), lambda: [b"public/default"]),
        Target("transaction-id", text(parse_id), lambda: [b"0123456789abcdef"]),
        Target("schema", mapping(TopicSchema.of), schema_seeds),
        Target("auto-scale", mapping(AutoScalePolicyOverride.of_json), record_seeds),
        *_stored(),
        *_imported(),
        *records,
    ]


def _stored() -> list[Target]:
    """Of object stores, backups, and metadata stores that others reach."""
    of = stored_decoders
    damaged = (CorruptionError, UnsupportedError)
    return [
        Target("object-log", of.wal_object, of.wal_object_seeds, damaged, of.reseal_object),
        Target("backup-manifest", of.manifest, of.manifest_seeds, damaged, of.reseal_manifest),
        Target("metadata-requests", of.metadata_requests, of.request_seeds, (ProtocolError,)),
        Target("metadata-answers", of.metadata_answers, of.answer_seeds, (ProtocolError,)),
        Target("etcd-record", of.etcd_record, of.etcd_seeds, (CorruptionError,)),
    ]


def _imported() -> list[Target]:
    of = import_decoders
    refused = (InvalidArgumentError,)
    return [
        Target("import-csv", of.csv, of.csv_seeds, refused),
        Target("import-json", of.json_lines, of.json_seeds, refused),
        Target("import-parquet", parquet, of.parquet_seeds, refused),
        Target("import-arrow", of.arrow, of.arrow_seeds, refused),
        Target("import-lines", of.piped, of.piped_seeds, refused),
    ]


def parquet(data: bytes) -> int:
    """In a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return import_decoders.parquet(data, Path(folder) / "0.parquet")


def schema_seeds() -> list[bytes]:
    avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}
    return [json.dumps({"type": "avro", "definition": json.dumps(avro)}).encode(), b'{"type":"json","definition":"{}"}']


def sealed_unstamped(data: bytes) -> bytes:
    """As a producer sends them."""
    return sealed(data) if len(data) >= 128 else data


@cache
def targets() -> dict[str, Target]:
    """By name."""
    return {target.name: target for target in _targets()}
