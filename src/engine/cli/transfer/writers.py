"""How an export writes: Parquet, CSV and JSON lines, in parts that are whole, so that the next run goes on behind one.

**CSV and JSON lines** grow at their end. A part is a run of lines; compressed, it is a member (gzip) or frame (zstd) of
its own, and a file of several is one file to whatever reads them.

**Parquet** has its directory, the footer, at the end, and pyarrow writes it when the file is closed; it cannot append.
Here each part is a row group that is closed with a footer of its own, which is taken off the file again and kept in the
journal. The last footer is made of all of them. What a footer says of its row group are offsets in the file, so the
group must be written where it is to lie, by a writer that takes itself to be at the beginning:

    1. a writer is opened on a scratch file, where it writes the four bytes of its magic;
    2. its descriptor becomes one of the export's file (dup2), which stands at the end of the part before;
    3. pyarrow asks the system for its place as it writes, so the offsets are those of the export's file.

The offset of each group's first page is compared with the place where it was begun.
"""

from __future__ import annotations

import base64
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from engine.cli.transfer.json_text import json_lines
from engine.errors import UnsupportedError

_MAGIC = b"PAR1"


class Writer(ABC):
    """Writes parts to `file`, which stands at the end of the part before."""

    @abstractmethod
    def part(self, batches: Sequence[Any], *, first: bool) -> None:
        """Write record batches as one part. `first`: it is the file's first, which has the head."""

    @abstractmethod
    def finish(self, *, empty: bool) -> None:
        """Write what stands at the end of a whole file; `empty`: it has no part."""


class ParquetWriter(Writer):
    """`footers`: of the parts that are there, in base64; it grows."""

    def __init__(self, file: BinaryIO, schema: Any, compression: str, scratch: Path, footers: list[str]) -> None:
        self._file, self._schema, self._scratch, self._footers = file, schema, scratch, footers
        self._compression = compression

    def part(self, batches: Sequence[Any], *, first: bool) -> None:
        import pyarrow
        import pyarrow.parquet

        if first:
            self._file.write(_MAGIC)
        begin = self._file.tell()
        try:
            with pyarrow.OSFile(str(self._scratch), "wb") as sink:
                writer = pyarrow.parquet.ParquetWriter(sink, self._schema, compression=self._compression)
                os.dup2(self._file.fileno(), sink.fileno())
                writer.write_table(pyarrow.Table.from_batches(batches, self._schema), row_group_size=1 << 62)
                end = self._file.tell()
                writer.close()
        finally:
            self._scratch.unlink(missing_ok=True)
        self._file.seek(end)
        footer = self._file.read()
        self._file.seek(end)
        self._file.truncate()
        self._check(footer, begin)
        self._footers.append(base64.b64encode(footer).decode())

    def _check(self, footer: bytes, begin: int) -> None:
        group = _metadata(footer).row_group(0)
        column = group.column(0)
        if (column.dictionary_page_offset or column.data_page_offset) != begin:
            raise UnsupportedError("this version of pyarrow does not write row groups where they are to lie")

    def finish(self, *, empty: bool) -> None:
        import pyarrow.parquet

        whole = io.BytesIO()
        if not empty:
            metadata = _metadata(base64.b64decode(self._footers[0]))
            for footer in self._footers[1:]:
                metadata.append_row_groups(_metadata(base64.b64decode(footer)))
            metadata.write_metadata_file(whole)
            self._file.write(whole.getvalue()[len(_MAGIC) :])
        else:
            pyarrow.parquet.ParquetWriter(whole, self._schema, compression=self._compression).close()
            self._file.write(whole.getvalue())


def _metadata(footer: bytes) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(io.BytesIO(_MAGIC + footer))


class _Text(Writer):
    """`codec`: gzip or zstd; None: as it is."""

    def __init__(self, file: BinaryIO, codec: str | None) -> None:
        self._file, self._codec = file, codec

    def _write_all(self, texts: Sequence[Any]) -> None:
        import pyarrow

        if self._codec is None:
            for text in texts:
                _write(self._file, text)
            return
        with pyarrow.CompressedOutputStream(pyarrow.PythonFile(_Unclosed(self._file), "w"), self._codec) as out:
            for text in texts:
                out.write(text)


class CsvWriter(_Text):
    """RFC 4180 as pyarrow writes it: text in quotes, an empty cell without them for what is null."""

    def __init__(self, file: BinaryIO, schema: Any, codec: str | None) -> None:
        super().__init__(file, codec)
        self._schema = schema

    def part(self, batches: Sequence[Any], *, first: bool) -> None:
        import pyarrow
        import pyarrow.csv

        text = pyarrow.BufferOutputStream()
        options = pyarrow.csv.WriteOptions(include_header=first)
        with pyarrow.csv.CSVWriter(text, self._schema, write_options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._write_all([text.getvalue()])

    def finish(self, *, empty: bool) -> None:
        if empty:
            self.part([], first=True)


class JsonLinesWriter(_Text):
    """An object a line; maps are objects, times are ISO 8601."""

    def finish(self, *, empty: bool) -> None:
        pass  # it ends with its last line

    def part(self, batches: Sequence[Any], *, first: bool) -> None:
        if batches:
            self._write_all([json_lines(batch) for batch in batches])


class _Unclosed(io.RawIOBase):
    """A file that stays open when what was written through it is closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return _write(self._file, data)


def _write(file: BinaryIO, data: Any) -> int:
    """All of it: a file without a buffer may take less at once."""
    left = memoryview(data).cast("B")
    while left:
        left = left[file.write(left) :]
    return memoryview(data).nbytes
