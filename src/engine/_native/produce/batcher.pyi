from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import Buffer

from engine._native.produce.sealed import SealedEntry, TransactionScope

class Account:
    used: int
    limit: int
    def __init__(self, limit: int) -> None: ...

class Batcher:
    producer_name: bytes
    open_messages: int
    floor: int
    pending_bytes: int
    pending_messages: int
    next_sequence: int
    numbered: bool
    def __init__(
        self,
        producer_name: bytes,
        *,
        key_hash: int = 0,
        bytes_max: int = ...,
        messages_max: int = ...,
        pending_bytes_max: int = ...,
        first_sequence: int = 0,
        on_open: Callable[[], None] | None = None,
        on_sealed: Callable[[], None] | None = None,
        on_full: Callable[[], None] | None = None,
        pack: Callable[[dict[str, str]], bytes] | None = None,
        now_ms: Callable[[], int] | None = None,
        steady: bool = False,
        least_sequence: int | None = None,
        admit: Callable[[Any], TransactionScope] | None = None,
        account: Account | None = None,
        entry_size_max: int = ...,
    ) -> None: ...
    @property
    def counters(self) -> dict[tuple[int, int], tuple[int, int, int]]: ...
    def set_layout(
        self, starts: Sequence[int], segment_ids: Sequence[int], bucket_ends: Sequence[Sequence[int]]
    ) -> None: ...
    def seal_all(self) -> None: ...
    def take(self) -> list[SealedEntry]: ...
    def resplit(self, entry: SealedEntry) -> list[SealedEntry]: ...
    def take_apart(self, entry: SealedEntry) -> list[SealedEntry]: ...
    @property
    def last_sequence(self) -> int: ...
    def send_nowait(
        self,
        value: Buffer,
        *,
        key: Buffer | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: object = None,
    ) -> None: ...
    def add(
        self,
        value: Buffer,
        key: Buffer | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        waiter: object = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: object = None,
    ) -> int: ...
    def add_columns(
        self,
        values: Any,
        keys: Any = None,
        event_times: Any = None,
        start: int = 0,
        transaction: object = None,
        properties: Any = None,
    ) -> int: ...
    def release(self, bytes: int, messages: int) -> None: ...  # noqa: A002
    def leave_account(self) -> None: ...
    def refuse(self, error: Exception) -> None: ...
