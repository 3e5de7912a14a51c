"""Record batches as lines of JSON, a column at a time: a call per cell would take most of an export's time."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder(enc_hook=str).encode
_NULL = "null"


def json_lines(batch: Any) -> Any:
    """A buffer of an object a line. Bytes must be text already; maps are objects, times are ISO 8601."""
    import pyarrow
    import pyarrow.compute as pc

    pieces: list[Any] = []
    for i, name in enumerate(batch.schema.names):
        pieces += [f"{',' if i else '{'}{_encode(name).decode()}:", *_cells(pyarrow, pc, batch.column(i))]
    lines = pc.binary_join_element_wise(*_joined([*pieces, "}\n"]), "")
    return _buffer_of(pyarrow, lines)


def _joined(pieces: list[Any]) -> list[Any]:
    """Texts that are the same in each line and stand side by side are one: each piece costs time in each line."""
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def json_cells(column: Any, *, without_empty: bool = False) -> Any:
    """Each cell of a column as JSON; null where it is null, and if asked to be, where it has no parts."""
    import pyarrow

    found = column.to_pylist(maps_as_pydicts="lossy")
    cells = [None if one is None or (without_empty and not one) else _encode(one).decode() for one in found]
    return pyarrow.array(cells, pyarrow.string())


def all_empty(column: Any) -> bool:
    """Whether each cell of a column of maps is empty or null."""
    return len(column.keys) == 0 or (column.offsets[-1].as_py() == column.offsets[0].as_py())


def _cells(arrow: Any, pc: Any, column: Any) -> list[Any]:
    """What a column adds to a line: texts that are the same in each, and arrays of text."""
    types, kind = arrow.types, column.type
    if types.is_map(kind) and all_empty(column):
        return ["{}"] if not column.null_count else [pc.if_else(column.is_null(), _NULL, "{}")]
    if types.is_string(kind):
        return _quoted(arrow, pc, column)
    if types.is_timestamp(kind):
        return [_times(arrow, pc, column).fill_null(_NULL)]
    if types.is_integer(kind) or types.is_boolean(kind):
        return [column.cast(arrow.string()).fill_null(_NULL)]
    return [json_cells(column).fill_null(_NULL)]


def _quoted(arrow: Any, pc: Any, column: Any) -> list[Any]:
    """Text in quotes. Control characters are rare, and left to the encoder.

    What has to be escaped is looked for in the bytes of all cells at once, which takes a small part of the time of a
    look at each cell. Without control characters and nulls, the quotes come with what stands around the cells.
    """
    data = arrow.py_buffer(_buffer_of(arrow, column))
    text, escaped = data.to_pybytes(), column
    for special, instead in (("\\", "\\\\"), ('"', '\\"')):
        if special.encode() in text:
            escaped = pc.replace_substring(escaped, special, instead)
    least = pc.min(arrow.Array.from_buffers(arrow.uint8(), len(text), [None, data])).as_py()
    odd = least is not None and least < ord(" ")
    if not odd and not column.null_count:
        return ['"', escaped, '"']
    cells = pc.binary_join_element_wise('"', escaped, '"', "")
    if odd:
        where = pc.match_substring_regex(column, "[\\x00-\\x1f]")
        cells = pc.replace_with_mask(cells, where.fill_null(False), json_cells(column.filter(where)))
    return [cells.fill_null(_NULL)]


def _times(arrow: Any, pc: Any, column: Any) -> Any:
    """Those of one batch of messages are often equal: each is written once.

    Arrow writes a time of UTC as one without a zone and a Z, in a small part of the time that one with a zone takes.
    """
    encoded, kind = column.dictionary_encode(), column.type
    times, zone = encoded.dictionary, ""
    if kind.tz == "UTC":
        times, zone = times.cast(arrow.timestamp(kind.unit)), "Z"
    texts = pc.replace_substring(times.cast(arrow.string()), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, f'{zone}"', "").take(encoded.indices)


def _buffer_of(arrow: Any, text: Any) -> Any:
    """The bytes of an array of text, one after the other."""
    _, offsets, data = text.buffers()
    if data is None or not len(text):
        return b""
    ends = arrow.Array.from_buffers(arrow.int32(), len(text) + 1, [None, offsets], offset=text.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    return data.slice(first, last - first)
