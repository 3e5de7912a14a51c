from collections.abc import Sequence

from typing_extensions import Buffer

def entries_of(
    batch: Buffer,
    count: int,
    name: bytes,
    *,
    sequence: int = 0,
    deliver_at: int | None = None,
    stored: int = -1,
    entry_size_max: int = ...,
    hashes: tuple[int, int] = ...,
    buckets: Sequence[int] = ...,
    key_hash: int = ...,
    transaction: int | None = None,
    schema_version: int = 0,
) -> list[bytes]: ...
