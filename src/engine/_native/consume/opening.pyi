"""Received blocks checked into entries, good and bad; bodies are decompressed when their turn comes."""

from collections.abc import Callable

from typing_extensions import Buffer

from engine._native.format.entry import Entry

def take_block(
    payload: Buffer, salt: int, segment_id: int, expect_offset: int = -1
) -> tuple[list[Entry], Entry | None]: ...
def damaged_entry(segment_id: int, offset: int, failure: str) -> Entry: ...
def first_value(entry: Entry, decompress: Callable[[int, memoryview, int], bytes]) -> bytes | None: ...
