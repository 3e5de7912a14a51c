"""The headers of entries in a block."""

from typing import final

from typing_extensions import Buffer

@final
class Head:
    start: int
    stop: int
    first: int
    last: int
    producer: int
    first_sequence: int
    last_sequence: int
    publish_time_ms: int
    delayed: bool
    def __repr__(self) -> str: ...

def head_of(block: Buffer) -> Head | None: ...
def entry_heads(block: Buffer) -> list[Head]: ...
def span_of(block: Buffer) -> tuple[int, int, int]: ...
def all_encrypted(block: Buffer) -> bool: ...
def groups_in(block: Buffer) -> dict[int, tuple[int, bool]]: ...
def apparent_heads(block: Buffer) -> list[Head]: ...
