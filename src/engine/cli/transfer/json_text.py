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
        pieces += [f"{',' if i else '{'}{_encode(name).decode()}:", _cells(pyarrow, pc, batch.column(i))]
    lines = pc.binary_join_element_wise(*pieces, "}\n", "")
    return _buffer_of(pyarrow, lines)


def json_cells(column: Any, *, without_empty: bool = False) -> Any:
    """Each cell of a column as JSON; null where it is null, and if asked to be, where it has no parts."""
    import pyarrow

    found = column.to_pylist(maps_as_pydicts="lossy")
    cells = [None if one is None or (without_empty and not one) else _encode(one).decode() for one in found]
    return pyarrow.array(cells, pyarrow.string())


def all_empty(column: Any) -> bool:
    """Whether each cell of a column of maps is empty or null."""
    return len(column.keys) == 0 or (column.offsets[-1].as_py() == column.offsets[0].as_py())


def _cells(arrow: Any, pc: Any, column: Any) -> Any:
    types, kind = arrow.types, column.type
    if types.is_map(kind) and all_empty(column):
        return arrow.scalar("{}") if not column.null_count else pc.if_else(column.is_null(), _NULL, "{}")
    if types.is_string(kind):
        cells = _quoted(pc, column)
    elif types.is_timestamp(kind):
        cells = _times(arrow, pc, column)
    elif types.is_integer(kind) or types.is_boolean(kind):
        cells = column.cast(arrow.string())
    else:
        cells = json_cells(column)
    return cells.fill_null(_NULL)


def _quoted(pc: Any, column: Any) -> Any:
    """Text in quotes. Control characters are rare, and left to the encoder."""
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    cells = pc.binary_join_element_wise('"', escaped, '"', "")
    odd = pc.match_substring_regex(column, "[\\x00-\\x1f]")
    if pc.any(odd).as_py():
        cells = pc.replace_with_mask(cells, odd.fill_null(False), json_cells(column.filter(odd)))
    return cells


def _times(arrow: Any, pc: Any, column: Any) -> Any:
    """Those of one batch of messages are equal: each is written once."""
    encoded = column.dictionary_encode()
    texts = pc.replace_substring(encoded.dictionary.cast(arrow.string()), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', texts, '"', "").take(encoded.indices)


def _buffer_of(arrow: Any, text: Any) -> Any:
    """The bytes of an array of text, one after the other."""
    _, offsets, data = text.buffers()
    if data is None or not len(text):
        return b""
    ends = arrow.Array.from_buffers(arrow.int32(), len(text) + 1, [None, offsets], offset=text.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    return data.slice(first, last - first)
