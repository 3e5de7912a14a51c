"""Messages that only clients of Apache Pulsar can read."""

from typing_extensions import Buffer

from engine._native.format.entry import Entry

def foreign_entry(
    content: Buffer,
    count: int,
    name: bytes,
    first: int,
    last: int,
    *,
    encrypted: bool,
    chunk: tuple[bytes, int] | None = None,
    part: bool = False,
    key: bytes | None = None,
    ordering_key: bytes | None = None,
    deliver_at: int | None = None,
    hashes: tuple[int, int] = (0, 65535),
    key_hash: int = 1,
    transaction: int | None = None,
) -> bytes: ...
def sent_metadata(entry: Entry) -> bytes: ...
