"""Spark's tasks read rolled files from the store of objects, each its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark_engine import DefaultSource

from engine.sync import Client
from tests.cli.cli_server import Server
from tests.kit.etcd import Etcd
from tests.kit.s3_server import S3Server
from tests.objects.consolidated import MESSAGES, OBJECTS, WRITTEN, consolidated, counter
from tests.spark.conftest import Reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    started = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def serving(store: S3Server, etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with consolidated(store, etcd, tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def reads(spark: SparkSession, store: S3Server, serving: Server) -> Iterator[Reads]:
    """Workers have the credentials: they are in the environment of what is registered now."""
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(store.environment)
    spark.dataSource.register(DefaultSource)
    yield Reads(spark, serving.url)
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)
    spark.dataSource.register(DefaultSource)


def test_each_task_of_a_batch_reads_its_objects(reads: Reads, serving: Server) -> None:
    with Client(serving.url) as client:
        before = counter(client, "out_messages_total")
        frame = reads("orders", objects=OBJECTS, minPartitions=3)
        assert frame.rdd.getNumPartitions() == 3
        found = {row.offset: bytes(row.value) for row in frame.select("offset", "value").collect()}
        assert found == dict(enumerate(WRITTEN))
        numbered = reads("orders", "offset BIGINT, sequence_id BIGINT", objects=OBJECTS)
        assert sorted(numbered.collect()) == [(n, n) for n in range(MESSAGES)]
        assert counter(client, "out_messages_total") == before
        assert reads("orders").count() == MESSAGES
        assert counter(client, "out_messages_total") - before == MESSAGES


def test_a_stream_reads_what_is_old_from_objects(reads: Reads, serving: Server, tmp_path: Path) -> None:
    with Client(serving.url) as client:
        before = counter(client, "out_messages_total")
        frame = reads.stream(
            "orders", objects=OBJECTS, startingOffsets="earliest", schema="offset BIGINT, value BINARY"
        )
        query = frame.writeStream.format("memory").queryName("objects").option("checkpointLocation", str(tmp_path))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination(120)
        found = {row.offset: bytes(row.value) for row in reads.spark.table("objects").collect()}
        assert found == dict(enumerate(WRITTEN))
        assert counter(client, "out_messages_total") == before
