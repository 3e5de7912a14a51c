from collections.abc import Callable

from engine._native.format.entry import Entry

def frame_of(
    entry: Entry,
    consumer_id: int,
    decompress: Callable[[int, object, int], bytes] | None,
    *,
    redelivered: int = 0,
    due: list[int] | None = None,
    partition: int = -1,
    schema_version: bytes = b"",
) -> bytes | None: ...
def schema_versions(entry: Entry, decompress: Callable[[int, object, int], bytes] | None) -> bytes: ...
def key_hashes(entry: Entry, decompress: Callable[[int, object, int], bytes] | None) -> bytes: ...
