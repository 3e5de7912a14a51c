"""What an owner says of objects is checked before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client.base.object_access import PIECE_SIZE_MIN, ReadAhead
from engine.client.files.object_files import ObjectFiles
from engine.errors import ProtocolError
from engine.limits import MIB, OBJECT_CHUNK_SIZE
from engine.wire.commands import Files

GOOD = [("log/c/a", 0, 10, 100), ("log/c/b", 10, 20, 100)]


def told(objects: list[Any], upto: int = 20) -> ObjectFiles:
    """Nothing is asked of the store."""
    answer = Files(objects=objects, upto=upto, hidden=[])
    return ObjectFiles("segment", 0, 5, answer, None, ReadAhead())  # type: ignore[arg-type]


@pytest.mark.parametrize(("upto", "expected"), [(20, 20), (15, 15), (30, 20)])
def test_no_more_is_read_than_the_objects_have(upto: int, expected: int):
    assert told(GOOD, upto).upto == expected


def test_nothing_is_an_answer():
    assert told([]).upto == 5


@pytest.mark.parametrize(
    "objects",
    [
        [("log/c/a", 6, 10, 100)],  # it does not have the first offset
        [("log/c/a", 0, 5, 100)],
        [("log/c/a", 0, 0, 100)],
        [GOOD[0], ("log/c/b", 11, 20, 100)],  # a gap
        [GOOD[1], GOOD[0]],
        [("log/c/a", 0, 10, 0)],
        [("/log/c/a", 0, 10, 100)],
        [("log/../../a", 0, 10, 100)],
        [("wal/c/s/000000000000", 0, 10, 100)],  # no rolled file
    ],
)
def test_what_does_not_hang_together_is_refused(objects: list[Any]):
    with pytest.raises(ProtocolError, match="SEGMENT_FILES"):
        told(objects)


def test_an_answer_without_objects_is_malformed():
    with pytest.raises(ProtocolError, match="malformed"):
        ObjectFiles("segment", 0, 5, Files(files=[], hidden=[]), None, ReadAhead())  # type: ignore[arg-type]


@pytest.mark.parametrize("readers", [1, 2, 3, 8, 40, 100])
def test_many_readers_request_less_each(readers: int):
    ahead = ReadAhead(32 * MIB)
    ahead.readers = readers
    assert PIECE_SIZE_MIN <= ahead.piece <= OBJECT_CHUNK_SIZE
    held = readers * (1 + ahead.pieces) * ahead.piece
    assert held <= max(32 * MIB, readers * PIECE_SIZE_MIN)
    assert (ahead.piece == OBJECT_CHUNK_SIZE) is (readers <= 2)
