"""Encrypted messages: written and read by Spark with keys as options, which are never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark_engine.options import READ_OPTIONS, ReadOptions, Texts, WriteOptions

import engine
from tests.kit.key_pairs import x25519_pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Reads, Writes

ALICE = x25519_pair(1)


def keys(**given: bytes | Path) -> str:
    return json.dumps({name: key.decode() if isinstance(key, bytes) else str(key) for name, key in given.items()})


def test_spark_reads_what_spark_has_encrypted(
    spark: SparkSession, broker: engine.Engine, reads: Reads, writes: Writes, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "alice.pem"
    path.write_bytes(ALICE.private)
    broker.admin.create_topic(topic)
    broker.admin.set_topic_policies(topic, {"encryption_required": True})
    frame = spark.createDataFrame([("k", f"secret {n}") for n in range(10)], "key STRING, value STRING")
    writes(frame, topic, encryptionKeys=keys(alice=ALICE.public))
    found = reads(topic, decryptionKeys=keys(alice=path)).selectExpr("CAST(value AS STRING) AS value").collect()
    assert sorted(row.value for row in found) == sorted(f"secret {n}" for n in range(10))


def test_a_stream_decrypts_what_it_reads_and_encrypts_what_it_writes(
    spark: SparkSession, broker: engine.Engine, reads: Reads, writes: Writes, topic: str, tmp_path: Path
) -> None:
    copy = f"{topic}copy"
    broker.admin.create_topic(copy)
    broker.admin.set_topic_policies(copy, {"encryption_required": True})
    with broker.producer(topic, encryption_keys={"alice": ALICE.public}) as producer:
        for number in range(10):
            producer.send(b"secret %d" % number, key="k")
    secrets = {"decryptionKeys": keys(alice=ALICE.private)}
    frame = reads.stream(topic, "key STRING, value STRING", startingOffsets="earliest", **secrets)
    writer = writes.stream(frame, copy, encryptionKeys=keys(alice=ALICE.public))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = reads(copy, **secrets).selectExpr("CAST(value AS STRING) AS value").collect()
    assert [row.value for row in found] == [f"secret {n}" for n in range(10)]


@pytest.mark.parametrize("text", ["secret-key", "{}", "[]", '{"a": 1}', '"secret-key"'])
def test_keys_that_are_none_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="decryptionKeys must be JSON") as caught:
        Texts({"decryptionKeys": text}, READ_OPTIONS).keys("decryptionKeys")
    assert "secret-key" not in str(caught.value)


def test_no_repr_of_options_shows_a_key() -> None:
    read = ReadOptions.read({"topic": "t", "decryptionKeys": keys(alice=ALICE.private)}, streaming=False)
    write = WriteOptions.read({"topic": "t", "encryptionKeys": keys(alice=ALICE.public)})
    assert "BEGIN" not in repr(read) + repr(write)
