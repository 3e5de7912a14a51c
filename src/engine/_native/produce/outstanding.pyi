from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry

class SentTogether:
    ordinal: int
    deadline: float

class Outstanding:
    outstanding: dict[SealedEntry, SentTogether]
    flights: int
    ordinal: int
    origins: dict[SealedEntry, SealedEntry]
    pieces: dict[SealedEntry, dict[SealedEntry, None]]
    renewed: dict[SealedEntry, float]
    stable: deque[tuple[int, int]]
    flushes: deque[tuple[int, Future[None]]]
    room: deque[Future[None]]
    complete: bool
    sweep: TimerHandle | None
    batcher: Batcher
    memory: Any
    window: Any
    loop: AbstractEventLoop
    send_timeout: float
    entries_sent: int
    entries_resent: int
    messages_sent: int
    bytes_sent: int
    messages_acknowledged: int
    messages_failed: int
    messages_duplicate: int
    def __init__(
        self,
        batcher: Batcher,
        memory: Any,
        window: Any,
        loop: AbstractEventLoop,
        send_timeout: float,
        make_id: Callable[[int, int], object],
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, entry: object) -> bool: ...
    def enter(self, entries: Sequence[SealedEntry]) -> None: ...
    def all_entered(self, upto: int) -> None: ...
    def acknowledge(self, entries: Sequence[SealedEntry], offsets: Sequence[int], end: int = -1) -> None: ...
    def take_out(self, entry: SealedEntry) -> bool: ...
    def left(self, freed: int, messages: int) -> None: ...
    def oldest(self) -> int: ...
    def expire(self) -> None: ...
    def end_flush(self, future: Future[None]) -> None: ...
    def room_came(self) -> None: ...
