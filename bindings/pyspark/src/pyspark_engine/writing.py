"""What a task does with its rows: record batches in, columns out to the producers of their topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

import engine
from pyspark_engine.attempts import Attempt, Written
from pyspark_engine.connection import shared_client
from pyspark_engine.options import WriteOptions
from pyspark_engine.schema import arrow_schema

if TYPE_CHECKING:
    from engine import Transaction

ROWS = 16_384  # of a record batch that is made of rows


def write_partition(options: WriteOptions, transaction: str | None, batches: Iterator[pa.RecordBatch]) -> Written:
    """All of a task's work: when it returns everything is durable, and of a `transaction` by that name."""
    first = next(batches, None)
    if first is None:
        return Written()
    client, rows = shared_client(options.connection), chain([first], batches)
    if transaction is None:
        _send(client, options.topic, rows, None)
        return Written()
    with Attempt(client, transaction, options.transaction_timeout_s) as attempt:
        if not attempt.done:
            _send(client, options.topic, rows, attempt.transaction)
            attempt.transaction.flush()
    return attempt.written


def _send(
    client: engine.Client, topic: str | None, batches: Iterable[pa.RecordBatch], transaction: Transaction | None
) -> None:
    with contextlib.ExitStack() as stack:
        producers: dict[str, engine.Producer] = {}
        for batch in batches:
            for name, part in _by_topic(batch, topic):
                if name not in producers:
                    producers[name] = stack.enter_context(client.producer(name))
                _send_batch(producers[name], part, transaction)


def _send_batch(producer: engine.Producer, batch: pa.RecordBatch, transaction: Transaction | None) -> None:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if columns["value"].null_count:
        raise ValueError("the column value is null in a row: a message has a value, which may be empty")
    producer.send_batch(
        columns["value"],
        columns.get("key"),
        event_times=columns.get("event_time"),
        properties=columns.get("properties"),
        transaction=transaction,
    )


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each topic's rows, in their order."""
    if topic is not None:
        yield topic, batch
        return
    found = batch.column("topic").dictionary_encode()
    if found.null_count:
        raise ValueError("the column topic is null in a row; name one topic with the option topic, or one in every row")
    codes, names = found.indices, found.dictionary.to_pylist()
    if len(names) > 1:
        batch = batch.take(pc.sort_indices(codes))  # a stable sort
    stop = 0
    for name, count in zip(names, np.bincount(codes.to_numpy(), minlength=len(names)).tolist(), strict=True):
        yield name, batch.slice(stop, count)
        stop += count


def record_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Of rows, where Spark gives nothing better."""
    target = arrow_schema(schema)
    while chunk := list(islice(rows, ROWS)):
        columns = [pa.array([_value(row[i]) for row in chunk], field.type) for i, field in enumerate(target)]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _value(found: Any) -> Any:
    """As Arrow takes it: local times have a zone, maps are pairs."""
    if isinstance(found, datetime):
        return found.astimezone(UTC)
    if isinstance(found, dict):
        return list(found.items())
    return bytes(found) if isinstance(found, bytearray) else found
