"""What a task does with its rows: record batches in, columns out to the producers of their topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

import engine
from pyspark_engine.attempts import Attempt, Written
from pyspark_engine.connection import shared_client
from pyspark_engine.options import Connection, KeyPairs, WriteOptions, as_keys
from pyspark_engine.schema import arrow_schema

ROWS = 16_384  # of a record batch that is made of rows
PRODUCERS = 64  # that a process keeps from task to task

_Kept = tuple[Connection, str, KeyPairs]
_producers: dict[_Kept, engine.Producer] = {}  # idle ones; a process has one task at a time


def write_partition(options: WriteOptions, transaction: str | None, batches: Iterator[pa.RecordBatch]) -> Written:
    """All of a task's work: when it returns everything is durable, and of a `transaction` by that name."""
    first = next(batches, None)
    if first is None:
        return Written()
    rows = chain([first], batches)
    if transaction is None:
        with _Topics(options, None) as topics:
            topics.send(rows)
        return Written()
    with Attempt(shared_client(options.connection), transaction, options.transaction_timeout_s) as attempt:
        if not attempt.done:
            with _Topics(options, attempt.transaction) as topics:
                topics.send(rows)
    return attempt.written


def _kept_as(options: WriteOptions, topic: str) -> _Kept:
    return options.connection, topic, options.encryption_keys


class _Topics:
    """The producers of a task. When its block is left everything is durable; those that failed are not used again."""

    def __init__(self, options: WriteOptions, transaction: engine.Transaction | None) -> None:
        self._options = options
        self._transaction = transaction
        self._used: dict[str, engine.Producer] = {}

    def send(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Each row to its topic."""
        for batch in batches:
            for topic, part in _by_topic(batch, self._options.topic):
                _send_batch(self._used.get(topic) or self._take(topic), part, self._transaction)

    def _take(self, topic: str) -> engine.Producer:
        options = self._options
        producer = _producers.pop(_kept_as(options, topic), None)
        if producer is None:
            keys = as_keys(options.encryption_keys)
            producer = shared_client(options.connection).producer(topic, encryption_keys=keys)
        self._used[topic] = producer
        return producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            for producer in self._used.values():
                with contextlib.suppress(engine.EngineError):
                    producer.close()

    def _flush(self) -> None:
        if self._transaction is not None:
            self._transaction.flush()
        else:
            for producer in self._used.values():
                producer.flush()
        _producers.update({_kept_as(self._options, topic): producer for topic, producer in self._used.items()})
        self._used = {}
        for oldest in list(_producers)[: max(0, len(_producers) - PRODUCERS)]:
            _producers.pop(oldest).close()


def _send_batch(producer: engine.Producer, batch: pa.RecordBatch, transaction: engine.Transaction | None) -> None:
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
