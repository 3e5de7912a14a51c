"""`Requests`: bounds, paces, counts and repeats the requests to one object store.

A store that is asked too often answers 503 (SlowDown) or 429. Each such answer halves the rate, at most once in
SLOW_S, and every answer that is none raises it again; so the rate settles where the store keeps up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from engine.aio.backoff import RetryDelay
from engine.errors import AlreadyClosedError, InvalidArgumentError, StorageError, UnknownOutcomeError
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError, ObjectStatistics

if TYPE_CHECKING:
    import random

T = TypeVar("T")
Kind = Literal["put", "get", "list", "delete", "multipart"]
KINDS: tuple[Kind, ...] = ("put", "get", "list", "delete", "multipart")

BURST_S = 0.25  # so many seconds' requests may follow each other at once
SLOW_S = 1.0
PER_S_MIN = 1.0
RECOVERY_REQUESTS = 1_000  # good answers that bring the rate back from nothing


class TransientError(Exception):
    """The store did not do what was asked, or it is not known. `slow`: because it is asked too often."""

    def __init__(self, text: str, *, slow: bool = False) -> None:
        super().__init__(text)
        self.slow = slow


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Bounds of the requests to one store."""

    in_flight_max: int = 64
    per_s_max: float = 3_000.0
    timeout_s: float = 30.0  # of one request
    attempts_max: int = 6  # of a request that may be repeated
    retry_s_min: float = 0.1  # the first pause before a repetition; doubled each time, up to
    retry_s_max: float = 5.0

    def __post_init__(self) -> None:
        for name in ("in_flight_max", "attempts_max"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be an int >= 1, got {getattr(self, name)!r}")
        if not self.per_s_max >= PER_S_MIN:
            raise InvalidArgumentError(f"per_s_max must be a number >= {PER_S_MIN:g}, got {self.per_s_max!r}")
        if not self.timeout_s > 0:
            raise InvalidArgumentError(f"timeout_s must be a number > 0, got {self.timeout_s!r}")


class _Rate:
    """When the next request may be sent. Times are the running loop's."""

    def __init__(self, per_s_max: float) -> None:
        self._max = per_s_max
        self.per_s = per_s_max
        self._next = float("-inf")
        self._slowed = float("-inf")

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(self._next, now - BURST_S)
        self._next = at + 1 / self.per_s
        if at > now:
            await asyncio.sleep(at - now)

    def slow_down(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._slowed + SLOW_S:
            self._slowed = now
            self.per_s = max(self.per_s / 2, PER_S_MIN)

    def speed_up(self) -> None:
        self.per_s = min(self.per_s + self._max / RECOVERY_REQUESTS, self._max)


class Requests:
    """Loop thread only."""

    def __init__(self, limits: RequestLimits, rng: random.Random) -> None:
        self._limits = limits
        self._rng = rng
        self._rate = _Rate(limits.per_s_max)
        self._room = asyncio.Semaphore(limits.in_flight_max)
        self._closed = False
        # Counters.
        self._in_flight = 0
        self._slow_downs = 0
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def close(self) -> None:
        self._closed = True

    def count(self, kind: Kind, requests: int) -> None:
        """Requests that one call has made beyond its first."""
        self._sent[kind] += requests

    async def once(
        self, kind: Kind, what: str, call: Callable[[], Awaitable[T]], *, bounded: bool = True, requests: int = 1
    ) -> T:
        """Send a request whose repetition the caller decides about. Raises UnknownOutcomeError.

        `bounded`: in time; otherwise the call raises TransientError by itself when it makes no progress. `requests`:
        how many the call makes. It begins when all may be sent, one by one, between those of others.
        """
        try:
            return await self._send(kind, call, self.timeout_s if bounded else None, requests)
        except TransientError as e:
            raise UnknownOutcomeError(f"{what}: {e}; it may have been done, read it back") from None

    async def repeated(self, kind: Kind, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request, again where the store fails. Raises StorageError after the last attempt."""
        delay = RetryDelay(self._rng, initial=self._limits.retry_s_min, maximum=self._limits.retry_s_max)
        while True:
            try:
                return await self._send(kind, call, self.timeout_s)
            except TransientError as e:
                if delay.attempts + 1 >= self._limits.attempts_max:
                    text = f"{what}: {e}, in {self._limits.attempts_max} attempts"
                    raise StorageError(text) from None
            await asyncio.sleep(delay.next())

    @property
    def timeout_s(self) -> float:
        return self._limits.timeout_s

    async def _send(
        self, kind: Kind, call: Callable[[], Awaitable[T]], timeout_s: float | None, requests: int = 1
    ) -> T:
        async with self._room:
            for _ in range(requests):
                await self._rate.turn()
            if self._closed:
                raise AlreadyClosedError("the object store is closed")
            self._sent[kind] += requests
            self._in_flight += 1
            try:
                async with asyncio.timeout(timeout_s):
                    result = await call()
            except (ObjectExistsError, ObjectMissingError):
                self._rate.speed_up()  # an answer like any other
                raise
            except TimeoutError:
                self._failed[kind] += 1
                raise TransientError(f"no answer within {self._limits.timeout_s:g} s") from None
            except TransientError as e:
                self._failed[kind] += 1
                if e.slow:
                    self._slow_downs += 1
                    self._rate.slow_down()
                raise
            except Exception:
                self._failed[kind] += 1
                raise
            finally:
                self._in_flight -= 1
            self._rate.speed_up()
            return result

    def statistics(self) -> ObjectStatistics:
        return ObjectStatistics(
            requests={kind: self._sent[kind] for kind in KINDS},
            failures={kind: self._failed[kind] for kind in KINDS},
            slow_downs=self._slow_downs,
            per_s=self._rate.per_s,
            in_flight=self._in_flight,
        )
