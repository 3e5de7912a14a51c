from collections.abc import Callable
from typing import Any

class SealedEntry:
    segment_id: int
    bucket: int
    count: int
    first_sequence: int
    last_sequence: int
    keyed: bool
    waiters: list[tuple[Any, int]] | None
    pending: int
    data: bytes
    attempts: int

def expand(data: bytes, decompress: Callable[[int, memoryview, int], bytes]) -> bytes: ...
