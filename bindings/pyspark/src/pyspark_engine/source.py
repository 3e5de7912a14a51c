"""`DefaultSource`: what Spark finds under the name "engine"."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_engine.options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions, Texts, WriteOptions
from pyspark_engine.reader import TopicReader
from pyspark_engine.schema import check_schema, check_written, table_schema
from pyspark_engine.streaming import stream_reader
from pyspark_engine.writer import TopicStreamWriter, TopicWriter


class DefaultSource(DataSource):
    """Topics as tables: `spark.read.format("engine").option("topic", "orders").load()`. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "engine"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    def schema(self) -> StructType:
        """All columns, for a query that gives no schema of its own."""
        texts = Texts(self._options, (*READ_OPTIONS, *WRITE_OPTIONS))
        return table_schema(
            include_headers=texts.flag("includeHeaders", True),
            include_sequence_ids=texts.flag("includeSequenceIds", False),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query. Raises ValueError for wrong options and columns."""
        check_schema(schema)
        return TopicReader(ReadOptions.read(self._options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Of a streaming query. Raises ValueError for wrong options and columns."""
        check_schema(schema)
        return stream_reader(ReadOptions.read(self._options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch. Raises ValueError for wrong options, columns and modes."""
        if overwrite:
            raise ValueError('the mode must be "append", got "overwrite": a topic cannot be overwritten')
        return TopicWriter(self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Of a streaming query. Raises ValueError for wrong options, columns and modes."""
        if overwrite:
            raise ValueError('outputMode must be "append": "complete" would write everything again in each batch')
        return TopicStreamWriter(self._write_options(schema), schema)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = WriteOptions.read(self._options)
        check_written(schema, options.topic)
        return options
