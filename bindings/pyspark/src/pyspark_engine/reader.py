"""A batch query: offsets are planned once, and every action on the DataFrame reads the same ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import engine
from pyspark_engine.arrival import Arriving
from pyspark_engine.connection import connect
from pyspark_engine.filters import Scope
from pyspark_engine.offsets import Wanted, read_place
from pyspark_engine.options import Place, ReadOptions
from pyspark_engine.partitions import Piece, Wish, plan
from pyspark_engine.planning import after, before, find_topics, pieces_between, resolve, within
from pyspark_engine.reading import read_partition

if TYPE_CHECKING:
    import pyarrow as pa


class _PushFilters:
    """`reader.pushFilters`. Spark refuses a reader that has one of its own while its setting
    spark.sql.python.filterPushdown.enabled is off, which it is by default, rather than not call it. So that the same
    reader does for both, this answers like the inherited one when it is asked whether it is that.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", None) or (lambda filters: filters))

    def __init__(self, push: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        self._push = push

    def __call__(self, filters: Iterable[Any]) -> Iterator[Any]:
        return self._push(filters)


class TopicReader(Arriving, DataSourceReader):
    """Made by DefaultSource where the query is planned; travels to the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._scope = Scope()
        self._starting, self._ending = _places(options)

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """Takes what it can of the filters, and gives the others back."""
        return _PushFilters(self._scope.push)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, by what the topics' owners say now."""
        options = self._options
        with connect(options.connection) as client:
            topics = [t for t in find_topics(client, options.topics) if self._scope.holds(t)]
            pieces = [piece for topic in topics for piece in self._pieces(client, topic)]
        wish = Wish(options.min_partitions, os.cpu_count() or 1, options.max_records_per_partition)
        return plan(pieces, wish, aligned=options.key_aligned)

    def _pieces(self, client: engine.Client, topic: str) -> list[Piece]:
        options, scope = self._options, self._scope
        starting, ending = (
            self._starting.of(topic, options.starting.option),
            self._ending.of(topic, options.ending.option),
        )
        with client.topic_view(topic) as view:
            facts = view.segments(exact=True)
            start, end = resolve(view, facts, starting, ending=False), resolve(view, facts, ending, ending=True)
            # "earliest" is the first message present; a stored position may have been deleted.
            pieces = pieces_between(facts, start, end, fail_on_data_loss=options.fail_on_data_loss)
            pieces = within(pieces, facts, scope)
            if scope.since is not None:
                pieces = after(pieces, view.resolve(engine.Checkpoint.at_timestamp(scope.since)).positions)
            if scope.behind is not None:
                pieces = before(pieces, view.resolve(engine.Checkpoint.at_timestamp(scope.behind)).positions)
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(
            self._options.connection,
            self._schema,
            partition,
            fail_on_data_loss=self._options.fail_on_data_loss,
            keys=self._scope.keys,
            decryption_keys=self._options.decryption_keys,
        )


def _places(options: ReadOptions) -> tuple[Wanted, Wanted]:
    """Raises ValueError, also for a batch that would start at the end or end at the start."""
    starting, ending = read_place(options.starting), read_place(options.ending)
    _refuse(options.starting, starting, "latest", "earliest")
    _refuse(options.ending, ending, "earliest", "latest")
    return starting, ending


def _refuse(place: Place, wanted: Wanted, form: str, other: str) -> None:
    if wanted.everywhere is not None and wanted.everywhere.form == form:
        raise ValueError(f"{place.option} is {form}, where a batch query finds nothing; {other} is its default")
