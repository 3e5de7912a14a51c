"""What files are: their format and compression by their names, and how bytes stand in text."""

from __future__ import annotations

import base64
import binascii
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from engine.errors import UnsupportedError

FORMATS = ["parquet", "csv", "jsonl"]
ENCODINGS = ["utf-8", "base64", "hex"]
CODECS = {"none": None, "gzip": "gzip", "zstd": "zstd"}  # of text
PARQUET_CODECS = ["zstd", "snappy", "gzip", "lz4", "none"]
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
STANDARD = "-"  # the standard input or output

ENCODERS: dict[str, Callable[[bytes], str]] = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": lambda data: data.hex(),
}


def _from_base64(text: bytes) -> bytes:
    return base64.b64decode(text, validate=True)


DECODERS: dict[str, Callable[[bytes], bytes]] = {"base64": _from_base64, "hex": binascii.unhexlify}


@dataclass(frozen=True, slots=True)
class FileForm:
    """`name`: one of FORMATS. `codec`: the compression of a text file, None without."""

    name: str
    codec: str | None


def form_of(file: str, name: str | None) -> FileForm:
    """The format of a file, by its suffixes where `name` does not say it. Raises a usage error."""
    suffixes = [suffix.lower() for suffix in Path(file).suffixes]
    codec = _COMPRESSED.get(suffixes[-1]) if suffixes and file != STANDARD else None
    if codec is not None:
        suffixes.pop()
    found = name or (_SUFFIXES.get(suffixes[-1]) if suffixes else None)
    if found is None:
        raise click.UsageError(
            f"the name of {file!r} must end with .parquet, .csv or .jsonl (and .gz or .zst behind the last two), "
            "or --format must say what it is"
        )
    if found == "parquet" and codec is not None:
        raise click.UsageError("a Parquet file is compressed inside: name it .parquet, and choose a --compression")
    if found == "parquet" and file == STANDARD:
        raise click.UsageError(
            "Parquet is written and read in a file, not through a pipe; csv and jsonl go through one"
        )
    return FileForm(found, codec)


def check_arrow(what: str) -> None:
    """Raise UnsupportedError without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError(f"engine {what} needs pyarrow 17 or later: pip install pyarrow, or engine[arrow]")
