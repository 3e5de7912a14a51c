"""`Import`: the rows of a file as messages of a topic, each once, however often the import is begun again.

The messages are those of a producer whose name is made of the file's content, and the row's number is the sequence id:
a topic stores each (name, sequence id) once. A repeated import asks how far everything is stored
(`acknowledged_sequence_id`), and goes on with the row behind; rows behind that which had come are recognised.

In a transaction it is the transaction that has the name: one that was committed is remembered, and one that was aborted
has taken its messages with it, so that the producer of the next attempt has another name.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from engine.cli.records import Records
from engine.cli.transfer.formats import STANDARD, FileForm
from engine.cli.transfer.mapping import Columns, Mapping
from engine.cli.transfer.memory import bulk_memory
from engine.cli.transfer.readers import CsvReader, Fault, JsonLinesReader, ParquetReader, Reader, Rows, check_names
from engine.cli.transfer.recorded import schema_of
from engine.client.base.schema import Schema
from engine.client.produce.content import content_digest
from engine.client.produce.table_rows import CheckedColumns
from engine.client.ranges.arrow_types import form_of as arrow_form_of
from engine.errors import EngineError, InvalidArgumentError, NotFoundError
from engine.model.schema import SchemaType

if TYPE_CHECKING:
    from engine.sync import Client, Producer, Transaction

FAULTS_SHOWN = 10
TRANSACTION_S = 24 * 3600.0
NAMES = ("key", "event_time", "properties")  # of columns that have their part in a message if there are such


@dataclass(frozen=True, slots=True)
class Terms:
    """How a file is imported. `columns`: names by part (value, key, event_time, properties); "" for none of it."""

    topic: str
    value: str | None = None  # column, json or schema; None: as the file and the topic have it
    value_column: str | None = None
    key: str | None = None
    event_time: str | None = None
    properties: str | None = None
    encoding: str = "utf-8"
    name: str | None = None
    create: bool = True
    skip_bad: bool = False
    transaction: bool = False
    dry_run: bool = False
    compression: str = "none"
    encryption_keys: Any = None


@dataclass(slots=True)
class Imported:
    """`rows`: of the file, as far as it was read. `sent`: messages that this run has added. `before`: rows that an
    earlier run has stored; until it ends, without those that were recognised behind the first that may be missing.
    `bad`: rows that are no messages.
    """

    topic: str
    name: str
    rows: int = 0
    sent: int = 0
    before: int = 0
    bad: int = 0
    bytes: int = 0


class Source:
    """The file: a reader of its rows, its content's digest and how far it was read."""

    def __init__(self, file: str, form: FileForm) -> None:
        self.file, self.form = file, form
        self.size = 0 if file == STANDARD else Path(file).stat().st_size
        self._raw: BinaryIO | None = None
        try:
            self.reader = self._reader()
            self.reader.ahead = self._raw is None or self._raw.seekable()
        except BaseException:
            self.close()
            raise

    def _reader(self) -> Reader:
        if self.form.name == "parquet":
            return ParquetReader(self.file)
        self._raw = sys.stdin.buffer if self.file == STANDARD else Path(self.file).open("rb")  # noqa: SIM115 - close()
        source = self._decompressed(self._raw)
        if self.form.name == "csv":
            return CsvReader(self.file, source, whole=source is self._raw and source.seekable())
        return JsonLinesReader(self.file, source)

    def _decompressed(self, raw: BinaryIO) -> BinaryIO:
        if self.form.codec == "gzip":
            import gzip

            return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
        if self.form.codec == "zstd":
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return raw

    @contextmanager
    def digest(self) -> Iterator[Callable[[], bytes]]:
        """Of the content: what has the same is the same file. A thread reads it, and is waited for by the call."""
        left = threading.Event()
        with ThreadPoolExecutor(1, "engine-import") as pool:
            coming = pool.submit(self._digest, lambda: not left.is_set())
            try:
                yield coming.result
            finally:
                left.set()

    def _digest(self, wanted: Callable[[], bool]) -> bytes:
        with Path(self.file).open("rb") as file:
            return content_digest(file, wanted)

    def done(self, rows: int) -> int:
        """How many of the bytes are read, of text, or else about how many."""
        if isinstance(self.reader, CsvReader) and (read := self.reader.bytes_read) is not None:
            return read
        if self._raw is not None:
            return self._raw.tell() if self._raw.seekable() else 0
        count = self.reader.count if isinstance(self.reader, ParquetReader) else 0
        return self.size * rows // count if count else self.size

    def close(self) -> None:
        if self._raw is not None and self.file != STANDARD:
            self._raw.close()


class Import:
    """One run. `progressed`: called with the bytes of the file that are read, and the record so far."""

    def __init__(
        self, client: Client, source: Source, terms: Terms, progressed: Callable[[int, Imported], object]
    ) -> None:
        self._client, self._source, self._terms, self._progressed = client, source, terms, progressed
        exists = client.topic_exists(terms.topic)
        if not exists and not terms.create:
            raise NotFoundError(f"there is no topic {terms.topic}; without --no-create it is created")
        self._schema = self._recorded() if exists else Schema.bytes()
        self.columns = self._columns()
        encoding = None if source.form.name == "parquet" else terms.encoding
        lines = source.form.name == "jsonl"
        self._mapping = Mapping(self.columns, self._schema, encoding, lines=lines)
        self.faults: list[str] = []  # the first of them
        self.result = Imported(terms.topic, terms.name or "")
        self._makes_topic = not (exists or terms.transaction or terms.dry_run)

    def _recorded(self) -> Schema[Any]:
        with self._client.topic_view(self._terms.topic) as view:
            return schema_of(view.schemas())

    def _name(self, digest: bytes) -> str:
        """The same for the same content with the same meaning."""
        meaning = repr((self._terms.topic, self.columns, self._terms.encoding))
        return f"import-{hashlib.sha256(digest + meaning.encode()).hexdigest()[:24]}"

    def _name_it(self) -> None:
        """Give the result its name. A topic that is missing is made meanwhile, which takes about as long."""
        if self.result.name or self._source.file == STANDARD:
            return
        with self._source.digest() as digest:
            if self._makes_topic:
                self._make_topic()
            self.result.name = self._name(digest())

    def _make_topic(self) -> None:
        self._client.producer(self._terms.topic).close()
        with suppress(EngineError), self._client.topic_view(self._terms.topic) as view:
            view.segments()  # which opens their files

    # -- columns -----------------------------------------------------------------------------------------------

    def _columns(self) -> Columns:
        terms, reader = self._terms, self._source.reader
        names = reader.names
        given = {"key": terms.key, "event_time": terms.event_time, "properties": terms.properties}
        # A JSON line without a field has a null in its place, so these may be looked for there in any case.
        parts = {part: self._part(part, given[part], names) for part in NAMES}
        form = terms.value or self._value_form(names)
        taken = {column for column in parts.values() if column is not None}
        value, fields = terms.value_column or "value", ()
        if form == "schema":
            value, fields = self._of_schema(names, taken)  # type: ignore[assignment]
        elif form == "json":
            value = None  # type: ignore[assignment]
            if reader.names is None:  # the lines themselves are the values
                parts = {part: column for part, column in parts.items() if given[part]}
        columns = Columns(form, value, fields=tuple(fields), **parts)
        if names is not None:
            check_names(names, columns.used)
        self._read_only(columns)
        return columns

    @staticmethod
    def _part(part: str, given: str | None, names: list[str] | None) -> str | None:
        if given is not None:
            return given or None
        return part if names is None or names.count(part) == 1 else None

    def _value_form(self, names: list[str] | None) -> str:
        terms = self._terms
        if not self._schema.raw and (names is None or "value" not in names or self._schema.field_names):
            return "schema" if terms.value_column is None else "column"
        if terms.value_column is not None or names is None or "value" in names:
            return "column"
        raise InvalidArgumentError(
            f"the file has no column value: name one with --value-column, or send whole rows with --value json; the "
            f"columns are {', '.join(names)}"
        )

    def _of_schema(self, names: list[str] | None, taken: set[str]) -> tuple[str | None, tuple[tuple[str, str], ...]]:
        """(the column of values, or None, and the columns of fields)."""
        if self._schema.raw:
            raise InvalidArgumentError(f"--value schema needs a topic that has one; {self._terms.topic} has none")
        fields = self._schema.field_names
        if fields is None:
            return self._terms.value_column or "value", ()
        if names is None:
            return None, tuple((name, name) for name in fields)
        found = {name: next((c for c in (f"value.{name}", name) if c in names), None) for name in fields}
        pairs = tuple((name, column) for name, column in found.items() if column is not None)
        if not pairs:
            raise InvalidArgumentError(
                f"the file must have columns of the fields {', '.join(fields)}; the columns are {', '.join(names)}"
            )
        return None, pairs

    def _read_only(self, columns: Columns) -> None:
        """Tell the reader what is used, and of which types cells of CSV are."""
        reader = self._source.reader
        if columns.form != "json" and isinstance(reader, ParquetReader | CsvReader | JsonLinesReader):
            reader.columns = columns.used
            if isinstance(reader, ParquetReader):
                reader.coded = columns.key
        if columns.form == "json" and isinstance(reader, ParquetReader | CsvReader):
            check_names(reader.names or [], list(dict.fromkeys(reader.names or [])))
        facts = self._schema.facts
        if columns.form == "schema" and isinstance(reader, CsvReader) and facts is not None and facts.definition:
            struct = arrow_form_of(facts.definition).type
            for name, column in columns.fields:
                reader.types[column] = struct.field(name).type
        if facts is not None and facts.type is SchemaType.STRING and columns.form == "column":
            self._schema = Schema.bytes()  # its text is the bytes of the column

    # -- rows --------------------------------------------------------------------------------------------------

    def run(self) -> Imported:
        """Send the rows that are missing. Raises InvalidArgumentError for a bad one, unless these
        are skipped; what a producer raises."""
        terms = self._terms
        with ExitStack() as stack:
            stack.enter_context(bulk_memory())
            blocks = stack.enter_context(self._source.reader.blocks())
            self._name_it()
            if terms.dry_run:
                self._rows(blocks, None, 0)
                return self.result
            transaction = stack.enter_context(self._transaction()) if terms.transaction else None
            if transaction is not None and str(transaction.state).lower() == "committed":
                self.result.before = -1
                return self.result
            producer = stack.enter_context(self._producer(transaction))
            self._rows(blocks, Sending(producer, transaction), producer.acknowledged_sequence_id + 1)
            producer.flush()
            known = producer.statistics().messages_duplicate
            self.result.sent -= known
            self.result.before += known
        return self.result

    def _transaction(self) -> Transaction:
        return self._client.transaction(TRANSACTION_S, name=self.result.name or None)

    def _producer(self, transaction: Transaction | None) -> Producer[Any]:
        name = self.result.name or None
        if name is not None and transaction is not None:
            name = f"{name}-{transaction.id}"
        compression: Any = self._terms.compression
        return self._client.producer(
            self._terms.topic, name=name, compression=compression, encryption_keys=self._terms.encryption_keys
        )

    def _rows(self, blocks: Iterator[Rows], sending: Sending | None, first: int) -> None:
        for rows in blocks:
            self._block(rows, sending, first)

    def _block(self, rows: Rows, sending: Sending | None, first: int) -> None:
        result = self.result
        for fault in rows.faults:
            self._bad(fault, first)
        if rows.first + rows.count <= first:
            result.before += rows.count
        else:
            start = max(0, first - rows.first)
            result.before += start
            for found in self._mapping.messages(rows.part(start, rows.count) if start else rows):
                if isinstance(found, Fault):
                    self._bad(found, first)
                    continue
                part, records, columns = found
                result.sent += part.count
                if sending is not None:
                    sending.send(part.first, records, columns)
        result.rows = rows.first + rows.count
        result.bytes = self._source.done(result.rows)
        self._progressed(result.bytes, result)

    def _bad(self, fault: Fault, first: int) -> None:
        place = f"{self._source.file}, {self._source.reader.place(fault.row)}: {fault.reason}"
        self.result.bad += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(place)
        if not self._terms.skip_bad and not self._terms.dry_run:
            raise InvalidArgumentError(place)


class Sending:
    """Sends stretches of rows under their numbers. The first message of a stretch states its number, and the rest of it
    follows in bulk: a producer counts on from there. One that was given a number never passes over a message that
    failed, so what is stored has no hole that a repeated import would not fill.
    """

    def __init__(self, producer: Producer[Any], transaction: Transaction | None) -> None:
        self._producer, self._transaction = producer, transaction
        self._next: int | None = None

    def send(self, first: int, records: Records, columns: CheckedColumns) -> None:
        """`columns`: the same as `records`."""
        if first != self._next:
            value, key, event_time, properties = next(records.rows())
            value = value.encode() if isinstance(value, str) else value
            self._producer.send_nowait(
                value, key=key, event_time=event_time, properties=properties, sequence_id=first,
                transaction=self._transaction,
            )  # fmt: skip
            rest = [None if c is None else c[1:] for c in (records.values, records.keys)]
            more = [None if c is None else c[1:] for c in (records.event_times, records.properties)]
            columns = CheckedColumns(*rest, *more)
        self._next = first + len(records)
        if len(columns):
            self._producer.send_columns(columns, self._transaction)


def usage(terms: Terms) -> None:
    """Raise a usage error for options that exclude each other."""
    if terms.value not in (None, "column") and terms.value_column is not None and terms.value != "schema":
        raise click.UsageError("--value-column is for --value column")
    if terms.transaction and terms.dry_run:
        raise click.UsageError("--dry-run sends nothing: leave --transaction out")
