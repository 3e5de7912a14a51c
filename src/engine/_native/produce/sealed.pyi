from collections.abc import Callable
from typing import Any

class TransactionScope:
    number: int
    attempt_number: int
    refusal: Exception | None
    def __init__(self, number: int, attempt_number: int) -> None: ...

class SealedEntry:
    segment_id: int
    bucket: int
    count: int
    first_sequence: int
    last_sequence: int
    keyed: bool
    waiters: list[tuple[Any, int]] | None
    pending: int
    scope: Any  # the TransactionScope, as the client made it, or None
    data: bytes
    attempts: int

def expand(data: bytes, decompress: Callable[[int, memoryview, int], bytes]) -> bytes: ...
