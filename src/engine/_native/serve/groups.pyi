from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

from engine._native.serve.lanes import Lanes
from engine._native.serve.log import Claim

COPY_MAX: int
PINNED_MAX: int
CHUNK_MAX: int

class Appended:
    first_sequence: int
    last_sequence: int
    first_offset: int
    count: int
    duplicate: bool
    def __init__(
        self, first_sequence: int, last_sequence: int, first_offset: int, count: int, duplicate: bool
    ) -> None: ...

def place(lanes: Lanes, claims: list[Claim], offset: int, durable: int) -> tuple[list[Appended], list[Claim]]: ...
def messages_of(claims: list[Claim]) -> int: ...

class Chunk:
    data: Buffer
    first_offset: int
    next_offset: int
    def __init__(self, data: Buffer, first_offset: int, next_offset: int, grows: bool) -> None: ...

class Group:
    file: Any
    position: int
    first_offset: int
    next_offset: int
    size: int
    chunks: list[Chunk]
    waiters: list[tuple[Any, Sequence[Appended]]]
    def __init__(self, file: Any, position: int, first_offset: int) -> None: ...
    @property
    def end_position(self) -> int: ...
    @property
    def buffers(self) -> list[Buffer]: ...
    def add(self, data: Buffer, term: int, time_ms: int, durable_upto: int) -> None: ...
    def succeed(self) -> None: ...
    def fail(self, error: Exception) -> None: ...

class GroupQueue:
    file: Any
    next_offset: int
    position: int
    open: Group | None
    def __init__(self, file_size_max: int, file_messages_max: int, group_max: int) -> None: ...
    def complete(self) -> None: ...
    def group_for(self, size: int, messages: int) -> Group | None: ...
    def grown(self, group: Group) -> None: ...
    def append(self, data: Buffer, messages: int, term: int, time_ms: int, durable_upto: int) -> Group | None: ...

def join_fresh(data: Buffer, claims: list[Claim]) -> tuple[memoryview, list[Claim]]: ...
