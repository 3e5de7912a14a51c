"""A streaming query: offsets over the whole DAG of each topic, micro-batch by micro-batch.

Spark calls all but read() in one Python process of the driver, which stays for the query's life; read() in the tasks'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_engine import offsets as form
from pyspark_engine import progress
from pyspark_engine.arrival import Arriving
from pyspark_engine.driver import Driver
from pyspark_engine.errors import DataLossError
from pyspark_engine.offsets import Offsets, read_place
from pyspark_engine.options import ReadOptions
from pyspark_engine.partitions import Wish, plan
from pyspark_engine.planning import pieces_between, resolve
from pyspark_engine.reading import read_partition

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS = True
except ImportError:  # before 4.2: Spark has no limits, and its own way with Trigger.AvailableNow
    LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not known to this version of Spark."""


if TYPE_CHECKING:
    import pyarrow as pa


class _StreamReader(Arriving, DataSourceStreamReader):
    """Made by DefaultSource, once for the driver and once to travel to the tasks. How far a micro-batch goes is a
    matter of the two subclasses, which know what Spark asks them.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._starting = read_place(options.starting)
        self._driver_made: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver_made": None}

    @property
    def _driver(self) -> Driver:
        if self._driver_made is None:
            self._driver_made = Driver(self._options)
        return self._driver_made

    # -- where the query stands -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """By startingOffsets and its like."""
        found: Offsets = {}
        for topic, facts in self._driver.facts(exact=True).items():
            target = self._starting.of(topic, self._options.starting.option)
            found[topic] = resolve(self._driver.view(topic), facts, target, ending=False)
        return form.to_json(found)

    def _beyond(
        self, stands: Offsets, facts: progress.Facts, *, most: int | None = None, target: Offsets | None = None
    ) -> tuple[Offsets, int]:
        """(How far it goes from there, `stands` itself when there is nothing to do; how many messages)."""
        begun = progress.begin(stands, facts, fail_on_data_loss=self._options.fail_on_data_loss)
        end = progress.advance(begun, facts, most=most, target=target)
        count = progress.available(begun, end)
        return (stands if count == 0 and end.keys() <= stands.keys() else end), count

    # -- a micro-batch ----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets, also for a micro-batch that an earlier run of the query had planned."""
        before, until = form.from_json(start), form.from_json(end)
        facts = self._driver.facts()
        if any(not _covers(facts.get(topic), offsets) for topic, offsets in until.items()):
            facts = self._driver.facts(exact=True)
        progress.begin(before, facts, fail_on_data_loss=self._options.fail_on_data_loss)
        pieces = []
        for topic, offsets in until.items():
            if topic not in facts:
                self._lose(topic)
                continue
            begun = before.get(topic) or form.TopicOffsets({}, offsets.epoch, offsets.created_ms)
            fail = self._options.fail_on_data_loss and topic in before
            pieces += pieces_between(facts[topic], begun, offsets, fail_on_data_loss=fail)
        options = self._options
        wish = Wish(options.min_partitions, os.cpu_count() or 1, options.max_records_per_partition)
        return plan(pieces, wish, aligned=options.key_aligned)

    def _lose(self, topic: str) -> None:
        if self._options.fail_on_data_loss and self._options.topics.namespace is None:
            raise DataLossError(f"{topic} was deleted, of which a micro-batch was to be read")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(
            self._options.connection,
            self._schema,
            partition,
            fail_on_data_loss=self._options.fail_on_data_loss,
            decryption_keys=self._options.decryption_keys,
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: where the query stands is in its own checkpoint, and the broker remembers nothing of it."""

    def stop(self) -> None:
        driver, self._driver_made = self._driver_made, None
        if driver is not None:
            driver.close()


class TopicStreamReader(_StreamReader, SupportsTriggerAvailableNow):
    """Spark says where the query stands and how much it wants. (From readers that are not told it does not take
    Trigger.AvailableNow for what it is: it makes one micro-batch, and none behind it that would close windows.)
    """

    _target: Offsets | None = None  # of Trigger.AvailableNow
    _idle: tuple[dict[str, Any], Any] = ({}, None)  # an offset, and facts by which nothing is to be done there
    _reported: tuple[dict[str, Any], Any] = ({}, None)

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._last_batch = time.monotonic()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes; `start` itself when there is nothing to do."""
        facts = self._driver.facts()
        if self._idle[1] is facts and self._idle[0] == start:
            return start
        stands, unlimited = form.from_json(start), isinstance(limit, ReadAllAvailable)
        most = None if unlimited else self._options.max_offsets_per_trigger
        end, count = self._beyond(stands, facts, most=most, target=self._target)
        if end is stands:
            self._idle = (start, facts)
            return start
        if not unlimited and self._target is None and self._waits(count):
            return start
        self._last_batch = time.monotonic()
        return form.to_json(end)

    def _waits(self, count: int) -> bool:
        """Whether there is too little yet, and it is early."""
        least = self._options.min_offsets_per_trigger
        early = time.monotonic() < self._last_batch + self._options.max_trigger_delay_s
        return least is not None and count < least and early

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Everything there was when latestOffset() was asked, just before, for the query's progress. None where that
        has said as much: an idle query is asked a hundred times a second.
        """
        facts = self._driver.known
        if not self._options.limited or not facts:
            return None
        if facts is not self._reported[1]:
            self._reported = (form.to_json(progress.ends(facts)), facts)
        return self._reported[0]

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing that comes from now on."""
        self._target = progress.ends(self._driver.facts(exact=True))


class UntoldStreamReader(_StreamReader):
    """Before PySpark 4.2 Spark does not say where the query stands. The answer before is that, but at first."""

    _stands: Offsets | None = None
    _answered: tuple[dict[str, Any], Any] = ({}, None)  # with the facts that it was computed from

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Everything there is; the same as before when nothing has come."""
        facts = self._driver.facts()
        if facts is not self._answered[1]:
            self._stands = progress.ends(facts) if self._stands is None else self._beyond(self._stands, facts)[0]
            self._answered = (form.to_json(self._stands), facts)
        return self._answered[0]


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """The one that this version of Spark needs. Raises ValueError."""
    if LIMITS:
        return TopicStreamReader(options, schema)
    if options.limited:
        raise ValueError("maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2 or later")
    return UntoldStreamReader(options, schema)


def _covers(facts: Any, offsets: form.TopicOffsets) -> bool:
    """Whether what is known in memory reaches as far as the offsets."""
    if facts is None:
        return False
    return all(i in facts.segments and facts.segments[i].end >= stop for i, stop in offsets.positions.items())
