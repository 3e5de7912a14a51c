"""Entries, scopes of transactions and a producer without a broker, for tables of what is in flight and of senders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from engine.aio.backoff import RetryDelay
from engine.client.base.options import Batching
from engine.client.produce.in_flight import InFlight


@dataclass(eq=False)
class Scope:
    """Keeps what it is told. `stored`: a commit is known to have followed its entries."""

    stored: bool = False
    abandoned: bool = False
    id: str = "1"
    mark: int | None = None
    errors: list[Exception] = field(default_factory=list)
    under_way: int = 0
    spread: int = 0
    attempt: str | None = None

    def entry_entered(self, awaited: bool) -> None:
        self.under_way += 1

    def entry_left(self, awaited: bool) -> None:
        self.under_way -= 1

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    def explained(self, error: Exception) -> Exception:
        return error

    def scattered(self) -> None:
        self.spread += 1

    def frame_sent(self, connection: object, entries: int) -> None: ...


@dataclass(eq=False)
class Entry:
    """As the batcher seals them."""

    first_sequence: int
    count: int = 1
    waiters: list[tuple[asyncio.Future[Any], int]] | None = None
    scope: Scope | None = None
    pending: int = 10
    segment_id: int = 0
    data: bytes = b"x"
    attempts: int = 0


class Batcher:
    """What of it is told that something has left."""

    def __init__(self) -> None:
        self.floor = 0
        self.released: list[tuple[int, int]] = []
        self.pending_bytes = self.pending_messages = 0
        self.counters: dict[Any, Any] = {}

    def release(self, size: int, messages: int) -> None:
        self.released.append((size, messages))


class Flying:
    """An InFlight, and what it calls."""

    def __init__(self, send_timeout: float = 60.0) -> None:
        self.batcher = Batcher()
        self.called_back: list[Exception] = []  # on_error
        self.failed: list[Exception] = []
        self.expired = 0
        self.in_flight = InFlight(
            self.batcher,  # type: ignore[arg-type]
            "topic://public/default/t",
            send_timeout=send_timeout,
            pending_bytes_max=1 << 20,
            batching=Batching(),
            on_error=self.called_back.append,
            on_failed=self.failed.append,
            on_expired=self._expired,
        )

    def _expired(self) -> None:
        self.expired += 1

    def enter(self, *entries: Entry) -> None:
        self.in_flight.enter(entries)  # type: ignore[arg-type]

    def all_entered(self, *entries: Entry) -> None:
        """They go together, and nothing below what follows them is missing."""
        self.enter(*entries)
        self.in_flight.all_entered(entries[-1].first_sequence + entries[-1].count)

    def acknowledge(self, *entries: Entry) -> None:
        self.in_flight.acknowledge(entries, [100 + e.first_sequence for e in entries])  # type: ignore[arg-type]

    def refuse(self, error: Exception, *entries: Entry) -> None:
        self.in_flight.fail(entries, error)  # type: ignore[arg-type]


class Tasks:
    """Runs what is spawned."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[Any]] = []

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self.running.append(task)
        return task

    async def cancel(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


class Layouts:
    """A session whose layout stays as it is."""

    def __init__(self) -> None:
        self.layout = self
        self.refusals: list[int] = []
        self.waits = 0

    def url_of(self, segment_id: int) -> str:
        return "engine://b"

    def refused(self, times: int) -> None:
        self.refusals.append(times)

    async def wait_changed(self, seen: object, delay: float) -> bool:
        self.waits += 1
        await asyncio.sleep(0)
        return False

    async def at(self, place: Callable[[Any], str | None], work: Callable[[str | None], Awaitable[Any]]) -> Any:
        return await work(place(self))


class Owner(Flying):
    """A producer, with a pool that the test gives."""

    def __init__(self, pool: Any, access_mode: str = "shared") -> None:
        super().__init__()
        self.name = "p"
        self.name_proof: bytes | None = None
        self.access_mode = access_mode
        self.properties: dict[str, str] = {}
        self.pool = pool
        self.pool.tasks = Tasks()
        self.pool.options.rng = random.Random(1)
        self.pool.retry_delays = lambda: RetryDelay(random.Random(1), initial=1e-6, maximum=1e-6)
        self.session = Layouts()
        self.claim: list[int] | None = None
        self.acknowledged_below = 0
        self.started = True
        self.failure: Exception | None = None
        self.fatal: list[Exception] = []
        self.receipts = self.settles = 0

    def receipts_came(self) -> None:
        self.receipts += 1

    def waited_ms(self) -> int:
        return 0

    def settle_retired(self) -> None:
        self.settles += 1

    def fail(self, error: Exception) -> None:
        self.fatal.append(error)

    def take_apart(self, entry: Entry) -> list[Entry]:
        pieces = [Entry(entry.first_sequence + i, segment_id=entry.segment_id) for i in range(entry.count)]
        self.in_flight.replace(entry, pieces)  # type: ignore[arg-type]
        return pieces
