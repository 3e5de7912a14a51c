"""`DefaultSource`: what Spark finds under the name "engine"."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_engine.options import READ_OPTIONS, ReadOptions, Texts
from pyspark_engine.reader import TopicReader
from pyspark_engine.schema import check_schema, table_schema
from pyspark_engine.streaming import TopicStreamReader


class DefaultSource(DataSource):
    """Topics as tables: `spark.read.format("engine").option("topic", "orders").load()`. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What stands in format()."""
        return "engine"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    def schema(self) -> StructType:
        """All columns, for a query that gives no schema of its own."""
        return table_schema(Texts(self._options, READ_OPTIONS).flag("includeHeaders", True))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query. Raises ValueError for wrong options and columns."""
        check_schema(schema)
        return TopicReader(ReadOptions.read(self._options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Of a streaming query. Raises ValueError for wrong options and columns."""
        check_schema(schema)
        return TopicStreamReader(ReadOptions.read(self._options, streaming=True), schema)
