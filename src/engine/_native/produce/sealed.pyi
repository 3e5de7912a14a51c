from collections.abc import Callable
from typing import Any

class TransactionScope:
    number: int
    attempt_number: int
    refusal: Exception | None
    under_way: int
    waited_for: int
    entries: int
    on_wire: int
    frames: int
    wire: Any  # the connection, or None
    spread: bool
    def __init__(self, number: int, attempt_number: int) -> None: ...
    def entry_entered(self, awaited: bool) -> None: ...
    def entry_left(self, awaited: bool) -> None: ...
    def left(self) -> None: ...
    def all_left(self) -> None: ...
    def frame_sent(self, connection: Any, entries: int) -> None: ...
    def scattered(self) -> None: ...

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
