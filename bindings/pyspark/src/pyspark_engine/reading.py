"""What a task does, in batch and in streaming queries alike: read its ranges, yield record batches."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import engine
from pyspark_engine.connection import shared_client
from pyspark_engine.errors import DataLossError
from pyspark_engine.options import Connection, KeyPairs, as_keys
from pyspark_engine.partitions import TopicPartition
from pyspark_engine.schema import converter

if TYPE_CHECKING:
    import pyarrow as pa

# A record batch is complete with either. In one larger than a processor's cache, each row costs Spark more.
BATCH_MESSAGES = 8_192
BATCH_BYTES = 2 * 1024 * 1024  # of keys and values
AHEAD_MESSAGES = 32 * BATCH_MESSAGES  # the broker sends while Spark takes a batch; in bytes the client's limit counts


def read_partition(
    connection: Connection,
    schema: StructType,
    partition: InputPartition,
    *,
    fail_on_data_loss: bool,
    keys: frozenset[bytes] | None = None,
    decryption_keys: KeyPairs = (),
) -> Iterator[pa.RecordBatch]:
    """All of a task's work, in order. Raises DataLossError where retention was faster."""
    if not isinstance(partition, TopicPartition):
        return  # what Spark makes up where there is nothing to read
    client, convert = shared_client(connection), converter(schema)
    _settle()
    for work in partition.work:
        try:
            with client.range_reader(
                work.topic,
                work.ranges,
                buckets=work.buckets,
                keys=keys,
                skip_deleted=not fail_on_data_loss,
                on_corrupt="stop" if fail_on_data_loss else "skip",
                receive_queue_size=AHEAD_MESSAGES,
                decryption_keys=as_keys(decryption_keys),
            ) as reader:
                while batches := gather(reader):
                    yield convert(batches)
        except engine.NotFoundError as e:
            raise DataLossError(f"{work.topic}: {e}") from e


@functools.cache
def _settle() -> None:
    """Once in a worker: what is imported is no garbage. Spark collects after every task, which takes 0.07 s longer when
    all of these modules are looked through. (To ask how much is set aside takes some milliseconds, too.)
    """
    gc.freeze()


def gather(reader: engine.RangeReader) -> list[engine.MessageBatch]:
    """What makes one record batch, of several reads if they are small; nothing at the end."""
    found: list[engine.MessageBatch] = []
    messages = size = 0
    while messages < BATCH_MESSAGES and size < BATCH_BYTES:
        batch = reader.next_batch(BATCH_MESSAGES - messages)
        if batch is None:
            break
        found.append(batch)
        messages, size = messages + len(batch), size + batch.size
    return found
