"""`Export`: the messages of a topic, or some of them, into files; it goes on where an interrupted one has stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from engine.cli.transfer.columns import ExportColumns, TextColumns
from engine.cli.transfer.formats import STANDARD, FileForm
from engine.cli.transfer.journal import Journal, State
from engine.cli.transfer.recorded import schema_of
from engine.cli.transfer.writers import CsvWriter, JsonLinesWriter, ParquetWriter, Writer
from engine.client.base.schema import Schema
from engine.errors import NotFoundError
from engine.model.positions import Checkpoint

if TYPE_CHECKING:
    from engine.client import TopicSegments
    from engine.sync import Client
    from engine.sync.ranges import TopicView

PART_BYTES = 128 << 20  # of columns in memory, and what is written again after an interruption at most
Place = Literal["earliest", "latest"] | datetime
Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is exported. `segments`: {id: (first offset, offset behind the last), or None for all}; empty: all of them.

    `part_rows`: of a row group. `file_rows`: of each of several files; None: one file.
    """

    topic: str
    start: Place = "earliest"
    end: Place = "latest"
    keys: tuple[bytes, ...] = ()
    segments: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    raw: bool = False
    encoding: str = "utf-8"
    compression: str = "zstd"
    part_rows: int = 1 << 20
    file_rows: int | None = None
    decryption_keys: Any = None
    on_corrupt: Literal["stop", "skip"] = "stop"


@dataclass(frozen=True, slots=True)
class Exported:
    """`resumed`: rows that an interrupted export had written. `files`: their names."""

    topic: str
    files: list[str]
    rows: int
    bytes: int
    resumed: int


@dataclass(frozen=True, slots=True)
class Source:
    """What a topic has: its segments with their offsets, the form of its values, and what is to be read."""

    facts: TopicSegments
    schema: Schema[Any]
    ranges: Ranges


def look(client: Client, wanted: Wanted) -> Source:
    """Fix what is read: it ends where the topic ends now. Raises NotFoundError, InvalidArgumentError."""
    with client.topic_view(wanted.topic) as view:
        facts = view.segments(exact=True)
        schema = Schema.bytes() if wanted.raw else schema_of(view.schemas())
        starts, ends = _positions(view, facts, wanted.start), _positions(view, facts, wanted.end)
    ranges: Ranges = {}
    unknown = sorted(set(wanted.segments) - set(facts.segments))
    if unknown:
        raise NotFoundError(
            f"{facts.topic} has no segment {unknown[0]}; there are {', '.join(map(str, facts.segments))}"
        )
    keyed = {i for key in wanted.keys for i in facts.holding(key)} if wanted.keys else set(facts.segments)
    for i, segment in sorted(facts.segments.items()):
        if i not in keyed or (wanted.segments and i not in wanted.segments):
            continue
        low, high = wanted.segments.get(i) or (segment.first, segment.end)
        first = max(low, segment.first, starts.positions.get(i, segment.first))
        end = min(high, segment.end, ends.positions.get(i, segment.first))
        if first < end:
            ranges[i] = (first, end)
    return Source(facts, schema, ranges)


def _positions(view: TopicView, facts: TopicSegments, place: Place) -> Checkpoint:
    if isinstance(place, datetime):
        return view.resolve(Checkpoint.at_timestamp(place))
    return facts.earliest if place == "earliest" else facts.latest


@dataclass(slots=True)
class Part:
    """Record batches that are written together. `positions`: {segment: the offset behind them}. `size`: bytes."""

    batches: list[Any] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    size: int = 0

    def add(self, written: Any, batch: Any) -> None:
        """`written`: what `batch` becomes in the file; `batch` itself has the columns of its place."""
        self.batches.append(written)
        self.rows += written.num_rows
        self.size += written.nbytes
        last = batch.num_rows - 1
        self.positions[batch.column("segment")[last].as_py()] = batch.column("offset")[last].as_py() + 1


class Export:
    """One run. `progressed`: called with how many offsets were read since, and how many rows and bytes are written."""

    def __init__(
        self, client: Client, wanted: Wanted, form: FileForm, target: str, progressed: Callable[[int, int, int], object]
    ) -> None:
        self._client, self._wanted, self._form, self._progressed = client, wanted, form, progressed
        self._target = Path(target)
        self._to_standard = target == STANDARD
        self.source = look(client, wanted)
        self._next: Part | None = None  # that is not written yet
        self._columns = ExportColumns(self.source.schema, wanted.columns, wanted.keys)
        nested = form.name == "jsonl"
        self._text = (
            None if form.name == "parquet" else TextColumns(self._columns.schema, wanted.encoding, nested=nested)
        )
        if self._text is not None:
            self.schema = self._text.schema
        else:
            self.schema = self._columns.schema

    @property
    def offsets(self) -> int:
        """How many offsets are read at most."""
        return sum(end - first for first, end in self.source.ranges.values())

    def run(self, *, overwrite: bool = False, restart: bool = False) -> Exported:
        """Write all of it. Raises AlreadyExistsError, NotFoundError, OSError; what is written is kept for the next."""
        if self._to_standard:
            return self._to_output()
        journal = Journal(self._target, overwrite=overwrite)
        try:
            asked = self._asked()
            state = journal.load(asked, restart=restart)
            resumed = 0 if state is None else state.rows
            if state is None:
                state = State(asked, {str(i): list(ends) for i, ends in self.source.ranges.items()})
                journal.save(state)
            self._files(journal, state)
            journal.forget()
            return Exported(self.source.facts.topic, state.files, state.rows, state.bytes, resumed)
        finally:
            journal.close()

    def _asked(self) -> dict[str, Any]:
        """What another run must have in common with this one to go on with its file. As JSON has it."""
        wanted = self._wanted
        return {
            "topic": self.source.facts.topic,
            "created": self.source.facts.created_ms,
            "format": self._form.name,
            "codec": self._form.codec,
            "columns": [f"{field.name}: {field.type}" for field in self.schema],
            "keys": [key.hex() for key in wanted.keys],
            "from": str(wanted.start),
            "to": str(wanted.end),
            "segments": {str(i): ends and list(ends) for i, ends in wanted.segments.items()},
            "limit": wanted.limit,
            "encoding": wanted.encoding if self._form.name != "parquet" else None,
            "compression": wanted.compression if self._form.name == "parquet" else None,
            "rows per file": wanted.file_rows,
        }

    # -- what is read ------------------------------------------------------------------------------------------

    def _batches(
        self, ranges: Ranges, rows: int, *, resumed: bool = False
    ) -> Iterator[tuple[list[Any], dict[int, int]]]:
        """(record batches, the next offset of each segment that they are of); `rows` of the limit are there already.

        `resumed`: what retention has deleted since the first run is an error then, and not left out.
        """
        wanted, left = self._wanted, self._wanted.limit
        if left is not None:
            left -= rows
        if not ranges or left == 0:
            return
        with self._client.range_reader(
            wanted.topic,
            ranges,
            keys=wanted.keys or None,
            skip_deleted=not resumed,
            on_corrupt=wanted.on_corrupt,
            decryption_keys=wanted.decryption_keys,
        ) as reader:
            for batch in reader.batches():
                places = {part.entry.segment_id: part.entry.first_offset + part.stop for part in batch.slices}
                found = self._columns.record_batches(batch)
                if left is not None:
                    found, left = _first_rows(found, left)
                yield found, places
                if left == 0:
                    return

    def _converted(self, batch: Any) -> Any:
        if self._text is not None:
            return self._text.convert(batch, self.source.facts.topic)
        return batch.select(self._columns.names)

    # -- into files --------------------------------------------------------------------------------------------

    def _files(self, journal: Journal, state: State) -> None:
        """One file after the other, from where the journal stands."""
        if state.done and not state.finished:
            return
        parts = self._parts(state)
        self._next = None if state.done else next(parts, None)
        while True:
            if not state.finished:
                self._file(journal, state, parts)
            name = self._name(state.file)
            journal.publish(name)
            state.files.append(str(self._target.with_name(name)))
            state.bytes += state.size
            state.file, state.file_rows, state.size, state.footers, state.finished = state.file + 1, 0, 0, [], False
            journal.save(state)
            if state.done:
                return

    def _name(self, number: int) -> str:
        """Of one of several files: orders-00000.csv.gz."""
        if self._wanted.file_rows is None:
            return self._target.name
        stem, dot, suffixes = self._target.name.partition(".")
        return f"{stem}-{number:05d}{dot}{suffixes}"

    def _parts(self, state: State) -> Iterator[Part]:
        """What is left, in runs of record batches as large as a part, each within one file."""
        self._progressed(_read(state), state.rows, state.size)
        part = Part()
        for found, places in self._batches(_left(state), state.rows, resumed=bool(state.positions)):
            for whole in found:
                batch = whole
                while batch.num_rows:
                    some = batch.slice(0, self._room(state, part))
                    batch = batch.slice(some.num_rows)
                    part.add(self._converted(some), some)
                    if part.size >= PART_BYTES or not self._room(state, part):
                        yield part
                        part = Part()
            part.positions.update(places)
        if part.batches or part.positions:
            yield part

    def _room(self, state: State, part: Part) -> int:
        """How many rows more there are in the part, within its file."""
        room, limit = self._wanted.part_rows, self._wanted.file_rows
        if limit is not None:
            room = min(room, limit - state.file_rows % limit)
        return room - part.rows

    def _file(self, journal: Journal, state: State, parts: Iterator[Part]) -> None:
        """Write the present file to its end, or to that of what there is."""
        with journal.partial.open("r+b" if journal.partial.exists() else "w+b", buffering=0) as file:
            file.truncate(state.size)
            file.seek(state.size)
            writer = self._writer(file, journal, state)
            limit = self._wanted.file_rows
            while (part := self._next) is not None and (limit is None or state.file_rows < limit):
                if part.rows:
                    writer.part(part.batches, first=not state.size)
                state.rows += part.rows
                state.file_rows += part.rows
                state.positions.update({str(i): offset for i, offset in part.positions.items()})
                state.size = file.tell()
                os.fsync(file.fileno())
                journal.save(state)
                self._progressed(_read(state), state.rows, state.size)
                self._next = next(parts, None)
            state.done = self._next is None
            writer.finish(empty=not state.size)
            os.fsync(file.fileno())
            state.size, state.finished = file.tell(), True
            journal.save(state)

    def _writer(self, file: BinaryIO | Any, journal: Journal | None, state: State) -> Writer:
        if self._form.name == "csv":
            return CsvWriter(file, self.schema, self._form.codec)
        if self._form.name == "jsonl":
            return JsonLinesWriter(file, self._form.codec)
        assert journal is not None
        scratch = journal.partial.with_name(f"{journal.partial.name}.scratch")
        return ParquetWriter(file, self.schema, self._wanted.compression, scratch, state.footers)

    # -- into a pipe -------------------------------------------------------------------------------------------

    def _to_output(self) -> Exported:
        out = sys.stdout.buffer
        state = State({}, {str(i): list(ends) for i, ends in self.source.ranges.items()})
        writer, size = self._writer(out, None, state), 0
        for found, places in self._batches(self.source.ranges, 0):
            batches = [self._converted(batch) for batch in found]
            size += sum(batch.nbytes for batch in batches)
            writer.part(batches, first=not state.rows)
            state.rows += sum(batch.num_rows for batch in batches)
            state.positions.update({str(i): offset for i, offset in places.items()})
            self._progressed(_read(state), state.rows, size)
            out.flush()
        writer.finish(empty=not state.rows)
        out.flush()
        return Exported(self.source.facts.topic, [STANDARD], state.rows, size, 0)


def _first_rows(batches: Sequence[Any], left: int) -> tuple[list[Any], int]:
    """The first `left` rows of them, and how many are left behind these."""
    found = []
    for batch in batches:
        found.append(batch.slice(0, left))
        left -= found[-1].num_rows
    return found, left


def _left(state: State) -> Ranges:
    """What is not read yet. Segments come one after the other: those before the last position's are read."""
    begun = max(map(int, state.positions), default=-1)
    found = {}
    for name, (first, end) in state.ranges.items():
        at = max(first, state.positions.get(name, first))
        if int(name) >= begun and at < end:
            found[int(name)] = (at, end)
    return found


def _read(state: State) -> int:
    """How many offsets are behind it."""
    left = _left(state)
    whole = {int(name): end - first for name, (first, end) in state.ranges.items()}
    return sum(whole.values()) - sum(end - first for first, end in left.values())
