"""Spark beside Apache Pulsar's own client: each reads what the other has written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pulsar
import pytest

from tests.kit.key_pairs import x25519_pair
from tests.pulsar.conftest import CODECS, EARLIEST, connect, service_url, take
from tests.pulsar.opaque import make_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import engine
    from tests.spark.conftest import Reads, Writes

WHEN = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)
KEYS = [f"k{n % 7}" if n % 5 else None for n in range(100)]


def name_of(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def when(number: int) -> datetime:
    return WHEN + timedelta(milliseconds=number)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_spark_reads_what_a_pulsar_producer_sent(
    broker: engine.Engine, topic: str, reads: Reads, codec: pulsar.CompressionType
) -> None:
    name = name_of(topic)
    client = connect(service_url(broker))
    producer = client.create_producer(
        name, "writer", compression_type=codec, batching_enabled=True, batching_max_publish_delay_ms=100
    )
    for number, key in enumerate(KEYS):
        about: dict[str, Any] = {"properties": {"p": f"ü{number}"}, "sequence_id": 3 * number}
        about |= {} if key is None else {"partition_key": key}
        producer.send_async(
            b"\xff%d" % number, lambda *_: None, event_timestamp=int(when(number).timestamp() * 1000), **about
        )
    producer.flush()
    client.close()
    rows = reads(name, includeSequenceIds="true").orderBy("offset").collect()
    assert [None if row.key is None else bytes(row.key).decode() for row in rows] == KEYS
    assert [bytes(row.value) for row in rows] == [b"\xff%d" % number for number in range(len(KEYS))]
    assert [row.event_time for row in rows] == [when(number).replace(tzinfo=None) for number in range(len(KEYS))]
    assert [row.properties for row in rows] == [{"p": f"ü{number}"} for number in range(len(KEYS))]
    assert {row.topic for row in rows} == {name}
    assert [row.sequence_id for row in rows] == [3 * number for number in range(len(KEYS))]
    assert {row.producer_name for row in rows} == {"writer"}
    with broker.stream_consumer(name, "ids", initial_position="earliest") as consumer:
        assert [consumer.receive(timeout=60).sequence_id for _ in KEYS] == [3 * number for number in range(len(KEYS))]


def test_a_stream_goes_on_with_the_sequence_ids_of_a_pulsar_producer(
    broker: engine.Engine, topic: str, reads: Reads, tmp_path: Path
) -> None:
    """Over the end of a query, from its checkpoint."""
    name, found = name_of(topic), []
    client = connect(service_url(broker))
    producer = client.create_producer(name, "writer", compression_type=pulsar.CompressionType.ZSTD)

    def take_rows(frame: DataFrame, _: int) -> None:
        found.extend((bytes(row.value), row.producer_name, row.sequence_id) for row in frame.collect())

    for start in (0, 5):
        for number in range(start, start + 5):
            producer.send(b"%d" % number, sequence_id=7 * number)
        frame = reads.stream(name, startingOffsets="earliest", includeSequenceIds="true")
        writer = frame.writeStream.foreachBatch(take_rows).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()
    client.close()
    assert found == [(b"%d" % number, "writer", 7 * number) for number in range(10)]


def test_a_time_that_spark_has_no_value_for_is_named(broker: engine.Engine, topic: str, reads: Reads) -> None:
    """A client of Apache Pulsar may say any."""
    name = name_of(topic)
    client = connect(service_url(broker))
    client.create_producer(name).send(b"v", event_timestamp=2**62)
    client.close()
    with pytest.raises(Exception, match="the column event_time has a time that TIMESTAMP cannot hold"):
        reads(name).collect()
    assert [bytes(row.value) for row in reads(name, "value BINARY").collect()] == [b"v"]
    with broker.stream_consumer(name, "s", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=60).event_time_ms == 2**62


def test_by_default_a_table_has_no_sequence_ids(broker: engine.Engine, topic: str, reads: Reads) -> None:
    columns = ["key", "value", "topic", "segment", "offset", "publish_time", "event_time", "properties"]
    with broker.producer(topic, name="writer") as producer:
        producer.send(b"v", sequence_id=9)
    assert reads(topic).columns == columns
    wide = reads(topic, includeSequenceIds="true")
    assert wide.columns == [*columns, "producer_name", "sequence_id"]
    assert dict(wide.dtypes[-2:]) == {"producer_name": "string", "sequence_id": "bigint"}
    assert reads(topic, "sequence_id BIGINT").collect() == [(9,)]
    assert reads(topic, "producer_name STRING, value BINARY").collect() == [("writer", b"v")]


def test_what_was_read_with_sequence_ids_can_be_written(
    broker: engine.Engine, topic: str, reads: Reads, writes: Writes
) -> None:
    """A new producer gives new ones."""
    with broker.producer(topic, name="writer") as producer:
        producer.send(b"v", sequence_id=9)
    copy = f"{topic}copy"
    writes(reads(topic, includeSequenceIds="true").drop("topic"), copy)
    (row,) = reads(copy, includeSequenceIds="true").collect()
    assert (bytes(row.value), row.sequence_id) == (b"v", 0)
    assert row.producer_name != "writer"


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_sequence_ids_of_encrypted_messages(
    broker: engine.Engine, topic: str, reads: Reads, compression: Literal["none", "lz4"]
) -> None:
    pair = x25519_pair(1)
    options: dict[str, Any] = {"compression": compression, "encryption_keys": {"alice": pair.public}}
    with broker.producer(topic, name="writer", **options) as producer:
        for number in range(5):
            producer.send(b"%d" % number, key="k", sequence_id=3 * number)
    keys = json.dumps({"alice": pair.private.decode()})
    rows = reads(topic, includeSequenceIds="true", decryptionKeys=keys).orderBy("offset").collect()
    assert [(bytes(row.value), row.producer_name, row.sequence_id) for row in rows] == [
        (b"%d" % number, "writer", 3 * number) for number in range(5)
    ]


def test_places_and_filters_name_a_classic_topic(broker: engine.Engine, topic: str, reads: Reads) -> None:
    name = name_of(topic)
    client = connect(service_url(broker))
    producer = client.create_producer(name)
    for number in range(5):
        producer.send(b"%d" % number)
    client.close()
    found = reads(name, startingOffsets=f'{{"{name}": {{"0": 2}}}}')
    assert sorted(bytes(row.value) for row in found.collect()) == [b"2", b"3", b"4"]
    every = reads(name)
    assert every.where(every.topic == name).count() == 5
    assert every.where(every.topic == f"topic://public/default/{topic}").count() == 0


def test_a_pulsar_consumer_reads_what_spark_wrote(
    spark: SparkSession, broker: engine.Engine, topic: str, writes: Writes
) -> None:
    name = name_of(topic)
    client = connect(service_url(broker))
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    sent = [(key, bytearray(b"\xff%d" % number), when(number), {"p": f"ü{number}"}) for number, key in enumerate(KEYS)]
    frame = spark.createDataFrame(
        sent, "key STRING, value BINARY, event_time TIMESTAMP, properties MAP<STRING, STRING>"
    )
    writes(frame.coalesce(1), name)
    messages = take(consumer, len(sent))
    found = sorted(messages, key=lambda message: int(message.properties()["p"][1:]))
    assert [message.data() for message in found] == [bytes(value) for _, value, _, _ in sent]
    assert [message.partition_key() for message in found] == [key or "" for key in KEYS]
    assert [message.properties() for message in found] == [properties for *_, properties in sent]
    assert [message.event_timestamp() for message in found] == [int(one.timestamp() * 1000) for _, _, one, _ in sent]
    client.close()


@pytest.mark.parametrize("kind", ["encrypted", "chunked"])
@pytest.mark.parametrize("lossy", ["true", "false"])
def test_what_only_pulsar_clients_can_read_fails_a_query_with_its_place(
    broker: engine.Engine, topic: str, reads: Reads, tmp_path: Path, kind: str, lossy: str
) -> None:
    """Also where bad entries are passed by: it is none."""
    name = name_of(topic)
    make_keys(tmp_path / "secret.pem", tmp_path / "public.pem")
    keys = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "secret.pem"))
    client = connect(service_url(broker))
    client.create_producer(name).send(b"before")
    if kind == "encrypted":
        client.create_producer(name, encryption_key="k", crypto_key_reader=keys).send(b"secret")
    else:
        client.create_producer(name, chunking_enabled=True, batching_enabled=False).send(bytes(6 << 20))
    text = "encrypted" if kind == "encrypted" else "sent in chunks"
    with pytest.raises(Exception, match=rf"DecryptionError.*segment 0, offsets 1\.\.1: {text} by a client of Apache"):
        reads(name, failOnDataLoss=lossy).collect()
    expected = [b"before", b"secret" if kind == "encrypted" else bytes(6 << 20)]
    consumer = client.subscribe(name, "s", initial_position=EARLIEST, crypto_key_reader=keys)
    assert [message.data() for message in take(consumer, 2)] == expected
    client.close()
    before = reads(name, endingOffsets=f'{{"{name}": {{"0": 1}}}}')
    assert [bytes(row.value) for row in before.collect()] == [b"before"]
