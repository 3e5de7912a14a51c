"""Spark beside Apache Pulsar's own client: each reads what the other has written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pulsar

from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, service_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import engine
    from tests.spark.conftest import Reads, Writes

WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEYS = [f"k{n % 7}" for n in range(100)]


def test_spark_reads_what_a_pulsar_producer_sent(broker: engine.Engine, topic: str, reads: Reads) -> None:
    name = f"persistent://public/default/{topic}"
    client = connect(service_url(broker))
    producer = client.create_producer(
        name, "writer", compression_type=pulsar.CompressionType.LZ4, batching_max_publish_delay_ms=100
    )
    about = {"properties": {"p": "ü"}, "event_timestamp": int(WHEN.timestamp() * 1000)}
    for number, key in enumerate(KEYS):
        producer.send_async(b"\xff%d" % number, lambda *_: None, partition_key=key, **about)
    producer.flush()
    client.close()
    rows = reads(name).orderBy("offset").collect()
    assert [(bytes(row.key).decode(), bytes(row.value)) for row in rows] == [
        (key, b"\xff%d" % number) for number, key in enumerate(KEYS)
    ]
    assert {row.event_time for row in rows} == {WHEN.replace(tzinfo=None)}
    assert all(row.properties == {"p": "ü"} for row in rows)


def test_a_pulsar_consumer_reads_what_spark_wrote(
    spark: SparkSession, broker: engine.Engine, topic: str, writes: Writes
) -> None:
    name = f"persistent://public/default/{topic}"
    client = connect(service_url(broker))
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    sent = [(key, f"value {number}") for number, key in enumerate(KEYS)]
    writes(spark.createDataFrame(sent, "key STRING, value STRING").coalesce(1), name)
    found = []
    for _ in sent:
        message = consumer.receive(WAIT_MS)
        found.append((message.partition_key(), message.data().decode()))
        consumer.acknowledge(message)
    client.close()
    assert sorted(found) == sorted(sent)
