"""Routes the entries of a block to the owners of their buckets."""

from typing_extensions import Buffer

def route(block: Buffer, ends: Buffer, owners: Buffer) -> list[tuple[int, int, int, int, int]]: ...
