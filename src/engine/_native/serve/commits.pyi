from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from engine._native.serve.blocks import Block
from engine._native.serve.groups import Appended, Group, GroupQueue
from engine._native.serve.lanes import Lanes
from engine._native.serve.log import Claim
from engine._native.serve.meters import Marks
from engine._native.serve.tails import Pieces, TailCache
from engine._native.serve.waiters import Waiter, Waiters
from engine.errors import EngineError

AHEAD_MIN: int
PAD_GROUP_MAX: int
SMALL_HANDED_MAX: int

class FileEnd:
    file: Any
    synced_offset: int
    synced_position: int
    def __init__(
        self,
        handles: Any,
        post: Callable[[Any, Any], None],
        make_job: Callable[[Any, Sequence[Any], int, int, bool], Any],
        zeros_ahead: Callable[[int], int],
    ) -> None: ...
    def write(self, groups: list[Group], pads: bool, syncs: bool, done: Callable[[Any], None]) -> None: ...
    def reopening(self, file: Any, handle: Any, job: Any) -> Any: ...
    def hand_over(self, group: Group, done: Callable[[Any], None]) -> None: ...

class Write:
    def __call__(self, result: Any, error: BaseException | None) -> None: ...

class Counters:
    commits: int
    commit_bytes: int
    syncs: int
    rolls: int
    write_failures: int
    sync_failures: int

class Primary:
    written: list[Group]
    syncs: bool
    offset: int
    position: int
    pads: bool
    begun: float

class Handed:
    def __call__(self, error: BaseException | None) -> None: ...

class CommitTurns:
    groups: GroupQueue
    active: Any
    counters: Counters
    marks: Marks
    segment: Any
    metrics: Any
    lease: Any
    durable_offset: int
    running: bool
    primary: Primary | None
    small_wanted: bool
    failure: Any
    stopped_by: Any
    sync_wanted: bool
    witness_sync_wanted: bool
    idle: list[Any]
    def __init__(
        self,
        groups: GroupQueue,
        active: FileEnd,
        segment: Any,
        metrics: Any,
        monotonic: Callable[[], float],
        lease: Any,
        *,
        by_sync: bool,
        by_interval: bool,
        backed: bool,
        commit_bytes_max: int,
    ) -> None: ...
    def add(self, data: memoryview, claims: list[Claim], term: int, time_ms: int) -> Group: ...
    def schedule(self) -> None: ...
    def pump(self) -> None: ...
    def may_write(self) -> bool: ...
    def lapsed(self) -> bool: ...
    def primary_done(self, error: BaseException | None) -> None: ...
    def proceed(self) -> None: ...
    def publish(self, groups: list[Group]) -> None: ...
    def roll(self, file: Any, abandoned: Any) -> None: ...
    def synced(self) -> None: ...
    def sync_later(self) -> None: ...
    def write_later(self) -> None: ...
    def backing_ended(self, error: BaseException, groups: list[Group]) -> None: ...
    def primary_failed(self, job: Primary, covered: list[Group], error: BaseException) -> None: ...
    def ahead_done(self, error: BaseException | None) -> None: ...
    def clean_up(self, failure: Any) -> None: ...
    def lapses(self) -> bool: ...
    def refuse(self, groups: list[Group]) -> None: ...
    def fail_rest(self, error: Any) -> None: ...
    def check_idle(self) -> None: ...

class Appends:
    messages: int
    entries: int
    size: int
    duplicates: int

class LogEnd:
    sealed: bool
    closed: bool
    seals: int
    failed: Any
    term: int
    lease: Any
    newest_ms: int
    appended: Appends
    dedup: Any
    def __init__(
        self,
        dedup: Lanes,
        cache: TailCache,
        tail: Pieces,
        waiters: Waiters,
        clock: Any,
        id_of: Callable[[str], int],
    ) -> None: ...
    def commit_with(self, commit: CommitTurns) -> None: ...
    def append_for(
        self,
        waiter: Any,
        entries: memoryview,
        producer: str,
        term: int | None,
        transaction: tuple[int, int] | None = None,
        *,
        several: bool = False,
    ) -> list[Appended] | None: ...
    gaps: Any
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def durable_offset(self) -> int: ...
    def read_with(self, reader: Any, files: list[Any]) -> None: ...
    def read(self, offset: int, max_bytes: int = ..., *, at_once: bool = False) -> Awaitable[Block] | Block | None: ...
    def call_when_durable(self, offset: int, call: Callable[[], object]) -> Waiter: ...
    def gone(self) -> EngineError: ...
    def group_durable(self, group: Group) -> None: ...
    def check_open(self, term: int | None) -> None: ...
    def acknowledge_duplicates(self, waiter: Any, places: list[Appended]) -> None: ...
