"""What Spark calls of a sink: writer and commit, of a batch and of every micro-batch of a stream.

Made where the job is planned, it travels to the tasks; commit() and abort() run in a process of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_engine import attempts
from pyspark_engine.arrival import Arriving
from pyspark_engine.options import WriteOptions
from pyspark_engine.writing import record_batches, write_partition

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    ARROW = True
except ImportError:  # in early versions of Spark the tasks of streams get rows
    ARROW = False
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow as pa


class TopicWriter(Arriving, DataSourceArrowWriter):
    """A batch write. The name of its transaction is the user's, or a unique one."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._name = (options.transaction_name or f"spark-{uuid.uuid4()}") if options.exactly_once else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_partition(self._options, self._name, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        attempts.commit(self._options.connection, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        own = self._options.transaction_name is None
        attempts.abort(self._options.connection, messages, self._name, for_good=own)


class TopicStreamWriter(Arriving, DataSourceStreamArrowWriter):
    """Of a streaming query. The name of the transaction comes from the query and the micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """One task's rows of a micro-batch."""
        batches = iterator if ARROW else record_batches(iterator, self._schema)
        once = self._options.exactly_once
        name = attempts.micro_batch_name(self._options.transaction_name) if once else None
        return write_partition(self._options, name, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are through."""
        attempts.commit(self._options.connection, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The micro-batch has failed, and so has the query."""
        options, name = self._options, None
        if options.exactly_once:
            name = attempts.name_in_driver(options.transaction_name, options.checkpoint, batchId)
        attempts.abort(options.connection, messages, name)
