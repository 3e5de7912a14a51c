"""The rows of a file, in blocks of columns. A row is numbered by its place in the file, also behind bad ones."""

from __future__ import annotations

import csv
import io
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

import msgspec

from engine.cli.records import LINE_BYTES_MAX
from engine.errors import InvalidArgumentError

# Of Parquet. pyarrow makes a column of text by doubling it, and gets the memory of a large one anew for each block,
# page by page: twice as many rows take a fifth more processor time to read, and much fewer take it to hand on.
BLOCK_ROWS = 16_384
FILE_BUFFER_BYTES = 1 << 20  # of Parquet, of each column
# Read by a thread while those before them are sent, and while the topic and its producer are made: at least so many
# blocks, and more of them where they are small.
BLOCKS_AHEAD = 2
AHEAD_BYTES = 32 << 20
BLOCK_BYTES = 4 << 20  # of JSON lines
CSV_BLOCK_BYTES = 8 << 20  # a thread is woken for each, twice
FAST_BYTES_MIN = 1 << 16  # of JSON, from which setting up another reader is worth it
HEAD_BYTES_MAX = 1 << 20  # of the line with the names of a CSV file's columns
COUNTED_BYTES = 1 << 18  # in which newlines are counted at once: what that takes stays in the cache
DECODING = 2  # blocks of JSON at once, while those before them are sent

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that is no message, and why. `row`: from 0."""

    row: int
    reason: str


@dataclass(slots=True)
class Rows:
    """`columns`: a list or an Arrow array each, by name. `first`: the number of the first row; the others follow it
    without a gap. `faults`: rows before and among these that could not be read.
    """

    columns: dict[str, Any]
    count: int
    first: int
    faults: list[Fault] = field(default_factory=list)

    def part(self, start: int, stop: int) -> Rows:
        """Some of its rows, by their places in it."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Rows(columns, stop - start, self.first + start)


class Reader:
    """Iterate it for Rows. `names`: the columns that there are; None where each row says so itself. `unit`: of what a
    row's number counts. `ahead`: whether other threads may read on while rows are sent. They cannot be interrupted, so
    not where reading waits for a program that writes.
    """

    names: list[str] | None = None
    unit = "row"
    numbered_from = 1
    ahead = False

    def blocks(self) -> AbstractContextManager[Iterator[Rows]]:
        """As iterated, and read ahead where that may be. Leave it before the file is closed."""
        return _ahead(iter(self)) if self.ahead else closing(iter(self))

    def __iter__(self) -> Generator[Rows, None, None]:
        raise NotImplementedError

    def place(self, row: int) -> str:
        """Where a row is, for people."""
        return f"{self.unit} {row + self.numbered_from}"


@contextmanager
def _ahead(blocks: Generator[Rows, None, None]) -> Iterator[Iterator[Rows]]:
    """The blocks, which a thread reads from now on."""
    coming: deque[Rows | BaseException | None] = deque()  # None: the end
    changed = threading.Condition()
    held, ended = 0, False

    def come(block: Rows | BaseException | None) -> bool:
        """Add what was read; then wait until another is to be read. False: none is any more."""
        nonlocal held
        with changed:
            coming.append(block)
            held += _size(block)
            changed.notify_all()
            changed.wait_for(lambda: ended or len(coming) < BLOCKS_AHEAD or held < AHEAD_BYTES)
            return not ended

    def read() -> None:
        try:
            for block in blocks:
                if not come(block):
                    return
            come(None)
        except BaseException as e:
            come(e)

    def found() -> Iterator[Rows]:
        nonlocal held
        while True:
            with changed:
                changed.wait_for(lambda: coming)
                block = coming.popleft()
                held -= _size(block)
                changed.notify_all()
            if isinstance(block, BaseException):
                raise block
            if block is None:
                return
            yield block

    thread = threading.Thread(target=read, name="engine-import")
    thread.start()
    try:
        yield found()
    finally:
        with changed:
            ended = True
            changed.notify_all()
        thread.join()
        blocks.close()


def _size(block: Rows | BaseException | None) -> int:
    """About its bytes in memory."""
    if not isinstance(block, Rows):
        return 0
    return sum(BLOCK_BYTES if isinstance(column, list) else column.nbytes for column in block.columns.values())


def _in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results, in order, of `work` that threads do for the next items; an error of these comes behind them."""
    with ThreadPoolExecutor(DECODING, "engine-import") as pool:
        coming: deque[Future[R]] = deque()
        left, error = iter(items), None
        while True:
            try:
                item = next(left)
            except StopIteration:
                break
            except Exception as e:
                error = e
                break
            coming.append(pool.submit(work, item))
            if len(coming) > DECODING:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
        if error is not None:
            raise error


def check_names(names: Sequence[str], used: Sequence[str]) -> None:
    """Raise InvalidArgumentError for a column that is not there, or more than once."""
    for name in used:
        if list(names).count(name) != 1:
            what = "is there several times" if name in names else "is not there"
            raise InvalidArgumentError(f"the column {name!r:.80} {what}; the columns are {', '.join(names) or 'none'}")


class ParquetReader(Reader):
    """`path`: of the file. `columns`: to be read; None: all. `coded`: one that may come as an Arrow dictionary."""

    def __init__(self, path: str) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        self._path = path
        try:
            self._file = self._opened()
        except (pyarrow.ArrowException, OSError) as e:
            raise InvalidArgumentError(f"{path} must be a Parquet file: {e}") from e
        self.names = list(self._file.schema_arrow.names)
        self.columns: list[str] | None = None
        self.coded: str | None = None
        self.count = self._file.metadata.num_rows

    def _use_codes(self) -> None:
        """Read `coded` as a dictionary where the file has it so. Else Arrow would have to make one."""
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        chunks = [chunk for group in groups for chunk in map(group.column, range(group.num_columns))]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema == self.coded]
        if chunks and all(
            # Text that stands there by itself takes four bytes more than it has.
            chunk.physical_type == "BYTE_ARRAY" and chunk.total_uncompressed_size < 4 * chunk.num_values
            for chunk in chunks
        ):
            self._file = self._opened(metadata=metadata, read_dictionary=[self.coded])

    def _opened(self, **options: Any) -> Any:
        # Pages as they are wanted, not whole columns of a row group before its first row.
        return self._parquet.ParquetFile(self._path, buffer_size=FILE_BUFFER_BYTES, pre_buffer=False, **options)

    def __iter__(self) -> Generator[Rows, None, None]:
        first = 0
        arrow = self._arrow
        try:
            if self.coded is not None:
                self._use_codes()
            # Without threads of pyarrow's own: a thread reads ahead already, and they take turns at small work.
            batches = self._file.iter_batches(batch_size=BLOCK_ROWS, columns=self.columns, use_threads=False)
            for batch in batches:
                columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
                yield Rows(columns, batch.num_rows, first)
                first += batch.num_rows
        except (arrow.ArrowException, OSError) as e:
            raise InvalidArgumentError(f"{self._path} is damaged behind {self.place(first - 1)}: {e}") from e


class CsvReader(Reader):
    """`source`: without compression. `types`: of columns that are not text, by name; set before it is iterated.
    `whole`: the source is the file `path` from its beginning on, which pyarrow reads by itself then.

    Cells are the bytes between the commas. An empty cell without quotes is null, one with quotes is empty.
    """

    def __init__(self, path: str, source: BinaryIO, *, whole: bool = False) -> None:
        self._path = path
        head, rest = _head_line(source)
        # Read without the interpreter, and into the same memory again: bytes of Python's are new pages for each block.
        self._begins = source.tell() - len(rest) if whole else None
        self._file: Any = None
        try:
            self._names = next(csv.reader(io.StringIO(head)), [])
        except csv.Error as e:
            raise InvalidArgumentError(f"{path} must begin with a line of the names of its columns: {e}") from e
        if not self._names:
            raise InvalidArgumentError(f"{path} must begin with a line of the names of its columns")
        self.names = list(self._names)
        self.types: dict[str, Any] = {}
        self._source = _Joined(rest, source)
        self.columns: list[str] | None = None

    @property
    def bytes_read(self) -> int | None:
        """Of the file; None where it is the source that knows."""
        return None if self._file is None else self._file.tell()

    def _opened(self) -> Any:
        import pyarrow

        if self._begins is None:
            return pyarrow.PythonFile(self._source, "r")
        self._file = pyarrow.OSFile(self._path)
        self._file.seek(self._begins)
        return self._file

    def __iter__(self) -> Generator[Rows, None, None]:
        import pyarrow as arrow
        import pyarrow.csv as reading

        bad: list[Fault] = []

        def invalid(row: Any) -> str:
            what = f"it has {row.actual_columns} columns, and must have {row.expected_columns}"
            bad.append(Fault((row.number or 1) - 1, what))
            return "skip"

        unique = [f"{i}:{name}" for i, name in enumerate(self._names)]  # names may repeat where they are not used
        types = {u: self.types.get(name, arrow.binary()) for u, name in zip(unique, self._names, strict=True)}
        wanted = [
            u for u, name in zip(unique, self._names, strict=True) if self.columns is None or name in self.columns
        ]
        named = dict(zip(unique, self._names, strict=True))
        row = 0
        try:
            blocks = reading.open_csv(
                self._opened(),
                reading.ReadOptions(column_names=unique, block_size=CSV_BLOCK_BYTES, use_threads=False),
                reading.ParseOptions(
                    newlines_in_values=True, invalid_row_handler=invalid, ignore_empty_lines=len(unique) > 1
                ),
                reading.ConvertOptions(
                    column_types=types,
                    include_columns=wanted,
                    check_utf8=False,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            for block in blocks:
                columns = {named[name]: block.column(i) for i, name in enumerate(block.schema.names)}
                for rows in self._without(bad, Rows(columns, block.num_rows, row)):
                    row = rows.first + rows.count
                    yield rows
        except arrow.ArrowException as e:
            if "Empty CSV file" in str(e):  # the line of names, and nothing behind it
                return
            raise InvalidArgumentError(f"{self._path} cannot be read behind {self.place(row - 1)}: {e}") from e
        if bad:
            yield Rows({}, 0, row, list(bad))

    @staticmethod
    def _without(bad: list[Fault], rows: Rows) -> Iterator[Rows]:
        """The rows of a block, which lacks the bad ones, in stretches without a gap."""
        done, first = 0, rows.first
        while done < rows.count:
            before: list[Fault] = []
            while bad and bad[0].row <= first:
                before.append(bad.pop(0))
                first += 1
            stop = rows.count if not bad else min(rows.count, done + bad[0].row - first)
            part = rows.part(done, stop)
            yield Rows(part.columns, part.count, first, before)
            first += stop - done
            done = stop


def _head_line(source: BinaryIO) -> tuple[str, bytes]:
    """(the names, what was read behind them). Names may be in quotes that hold newlines."""
    data = b""
    while more := source.read(1 << 16):
        data += more
        at = -1
        while (at := data.find(b"\n", at + 1)) >= 0:
            if data.count(b'"', 0, at) % 2 == 0:
                return _text_of(data[:at]), data[at + 1 :]
        if len(data) > HEAD_BYTES_MAX:
            raise InvalidArgumentError(
                f"the line of names must have at most {HEAD_BYTES_MAX:,} bytes, got a longer one"
            )
    return _text_of(data), b""


def _text_of(head: bytes) -> str:
    try:
        return head.decode("utf-8-sig").removesuffix("\r")
    except UnicodeDecodeError as e:
        raise InvalidArgumentError(f"the names of columns must be UTF-8, got {head[:80]!r}") from e


class _Joined(io.RawIOBase):
    """Some bytes, and then a file."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = io.BytesIO(head), rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._head.read(size) or self._rest.read(size)


def _lines_in(block: bytes) -> int:
    """Newlines and one: bytes.count() stops at each, and takes three times as long."""
    import numpy

    data = numpy.frombuffer(block, numpy.uint8)
    parts = range(0, len(data), COUNTED_BYTES)
    return sum(int(numpy.count_nonzero(data[at : at + COUNTED_BYTES] == 10)) for at in parts) + 1


def _whole(column: Any) -> Any:
    """A column as one array; combine_chunks() copies also where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class JsonLinesReader(Reader):
    """`columns`: the fields that are wanted of each object; None: the lines themselves, as the column "" of bytes."""

    unit = "line"

    def __init__(self, path: str, source: BinaryIO) -> None:
        self._path, self._source = path, source
        self.columns: list[str] | None = None

    def __iter__(self) -> Generator[Rows, None, None]:
        form = msgspec.defstruct(
            "Line", [(f"f{i}", Any, None) for i in range(len(self.columns or ()))],
            rename={f"f{i}": name for i, name in enumerate(self.columns or ())},
        )  # fmt: skip
        decoder = msgspec.json.Decoder(form)
        first = 0
        for block, count, fast in (_in_order if self.ahead else map)(self._first_look, self._blocks()):
            if fast is not None:
                yield Rows(fast, count, first)
                first += count
                continue
            try:
                found = decoder.decode_lines(block)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found = []
            if len(found) == count:
                yield self._rows(found, [] if self.columns is not None else block.split(b"\n"), first)
            else:
                yield from self._singly(decoder, block.split(b"\n"), first)
            first += count

    def _first_look(self, block: bytes) -> tuple[bytes, int, dict[str, Any] | None]:
        """(the block, its lines, what _by_arrow() finds); on any thread."""
        count = _lines_in(block)
        return block, count, self._by_arrow(block, count)

    def _by_arrow(self, block: bytes, count: int) -> dict[str, Any] | None:
        """The columns of lines whose fields are text, which pyarrow reads several times as fast; None for others.

        It has no type for properties of any name, so these must be empty.
        """
        import pyarrow as arrow
        import pyarrow.json as reading

        names = self.columns
        if names is None or len(block) < FAST_BYTES_MIN:
            return None
        maps = [name for name in names if name == "properties"]
        if maps and (named := block.count(b'"properties"')) and named != block.count(b'"properties":{}'):
            return None
        schema = arrow.schema([(name, arrow.string()) for name in names if name not in maps])
        try:
            table = reading.read_json(
                arrow.BufferReader(block),
                reading.ReadOptions(use_threads=False, block_size=len(block) + 1),
                reading.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            table.validate(full=True)  # that text is UTF-8
        except arrow.ArrowException:
            return None
        if table.num_rows != count:
            return None
        found = {name: _whole(table.column(name)) for name in schema.names}
        return {name: found.get(name, arrow.nulls(count, arrow.string())) for name in names}

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, without the newline of the last."""
        parts: list[bytes] = []
        size = 0
        while data := self._source.read(BLOCK_BYTES):
            if (end := data.rfind(b"\n")) >= 0:
                yield b"".join([*parts, memoryview(data)[:end]])
                parts = [data[end + 1 :]]
                size = len(parts[0])
                continue
            parts.append(data)
            size += len(data)
            if size > LINE_BYTES_MAX:
                raise InvalidArgumentError(f"a line must have at most {LINE_BYTES_MAX:,} bytes, got a longer one")
        if size:
            yield b"".join(parts)

    def _rows(self, found: list[Any], lines: list[bytes], first: int, faults: list[Fault] | None = None) -> Rows:
        if self.columns is None:
            columns: dict[str, Any] = {"": lines}
        else:
            columns = {name: [getattr(one, f"f{i}") for one in found] for i, name in enumerate(self.columns)}
        return Rows(columns, len(found), first, faults or [])

    def _singly(self, decoder: Any, lines: list[bytes], first: int) -> Iterator[Rows]:
        """Line by line, in stretches without a gap. An empty line is neither a row nor a bad one."""
        good: list[Any] = []
        start = first
        faults: list[Fault] = []
        for row, line in enumerate(lines, first):
            try:
                if line.strip():
                    good.append(decoder.decode(line))
                    continue
                reason = None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
                reason = f"it is no object of JSON: {e}"
            if good or faults:
                yield self._rows(good, lines[start - first : row - first], start, faults)
            good, start = [], row + 1
            faults = [] if reason is None else [Fault(row, reason)]
        if good or faults:
            yield self._rows(good, lines[start - first :], start, faults)
