"""An object store that misbehaves: it refuses without reason, stores and fails, hangs, stores late, reorders.

What a client sends arrives even when the client has died, as over a network.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

from engine.aio.shielded import shielded
from engine.errors import AlreadyClosedError, StorageError, UnknownOutcomeError
from engine.storage.objects.ports import ObjectExistsError, ObjectInfo, ObjectMissingError, ObjectStatistics, Tail, each
from engine.storage.objects.requests import KINDS
from engine.testing.clock import EPOCH_MS

if TYPE_CHECKING:
    from typing_extensions import Buffer

HANG_S = 5.0
LATE_S_MAX = 30.0


class FaultyObjectStore:
    """Objects in memory. The knobs may be turned at any time; rates are of the PUTs, each between 0 and 1."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._closed = False
        self._sent: Counter[str] = Counter()
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}  # as LoopClock has it
        self.accepts_both = False  # a store without conditional PUTs
        self.delay_s_max = 0.0  # of each way
        self.refuse_rate = 0.0  # answers 409 and stores nothing
        self.fail_rate = 0.0  # fails and stores nothing
        self.stored_fail_rate = 0.0  # stores and fails
        self.hang_rate = 0.0  # does not answer; half of these are stored
        self.late_rate = 0.0  # fails, and arrives up to LATE_S_MAX later
        self.read_fail_rate = 0.0  # of the other requests

    def __repr__(self) -> str:
        return "FaultyObjectStore()"

    # -- PUT -------------------------------------------------------------------------------------------------------

    async def put_if_absent(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._begin("put")
        data, luck, loop = b"".join(map(bytes, buffers)), self._rng.random(), asyncio.get_running_loop()
        unknown = UnknownOutcomeError(f"PUT {name}: the store answered 500")
        faults = (
            (self.refuse_rate, None, 0.0, ObjectExistsError("409")),
            (self.fail_rate, None, 0.0, unknown),
            (self.stored_fail_rate, 0.0, 0.0, unknown),
            (self.hang_rate, 0.0 if self._rng.random() < 0.5 else None, HANG_S, unknown),
            (self.late_rate, self._rng.uniform(0, LATE_S_MAX), 0.0, unknown),
        )
        arrives: float | None = 0.0
        answer: Exception | None = None
        wait = 0.0
        for rate, *fault in faults:
            if luck < rate:
                arrives, wait, answer = fault  # type: ignore[assignment]
                break
            luck -= rate
        stored = loop.create_future()
        if arrives is None:
            stored.set_result(True)
        else:
            loop.call_later(arrives + self._delay(), self._arrive, name, data, stored)
        if answer is None or arrives == 0.0:
            accepted = await shielded(stored)
            answer = answer or (None if accepted else ObjectExistsError(name))
        await asyncio.sleep(wait + self._delay())
        if answer is not None:
            raise answer

    def _arrive(self, name: str, data: bytes, stored: asyncio.Future[bool]) -> None:
        free = name not in self.objects or self.accepts_both
        if free:
            self._store(name, data)
        if not stored.done():
            stored.set_result(free)

    async def put_multipart(self, name: str, pieces: Iterable[Buffer] | AsyncIterable[Buffer], size: int) -> None:
        self._begin("multipart")
        data = b"".join([bytes(piece) async for piece in each(pieces)])
        luck, loop = self._rng.random(), asyncio.get_running_loop()
        await asyncio.sleep(self._delay())
        unknown = UnknownOutcomeError(f"PUT {name}: the store answered 500")
        if luck < self.fail_rate:
            raise unknown
        luck -= self.fail_rate
        if luck < self.late_rate:
            loop.call_later(self._rng.uniform(0, LATE_S_MAX), self._store, name, data)
            raise unknown
        luck -= self.late_rate
        self._store(name, data)
        if luck < self.hang_rate:
            await asyncio.sleep(HANG_S)
        if luck < self.hang_rate + self.stored_fail_rate:
            raise unknown

    def _store(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self.modified_ms[name] = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    # -- the others ------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> memoryview:
        return memoryview(await self._read(name))

    async def get_range(self, name: str, start: int, end: int) -> memoryview:
        return memoryview(await self._read(name))[start:end]

    async def get_tail(self, name: str, size: int) -> Tail:
        data = await self._read(name)
        return Tail(memoryview(data)[max(0, len(data) - size) :], len(data))

    async def _read(self, name: str) -> bytes:
        await self._request("get")
        data = self.objects.get(name)
        await asyncio.sleep(self._delay())
        if data is None:
            raise ObjectMissingError(name)
        return data

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._request("list")
        folder = f"{prefix}/"
        found = sorted(name for name in self.objects if name.startswith(folder) and name > after)
        infos = [ObjectInfo(name, len(self.objects[name]), self.modified_ms.get(name, 0)) for name in found]
        for info in infos:
            yield info

    async def delete(self, names: Sequence[str]) -> None:
        await self._request("delete")
        for name in names:
            self.objects.pop(name, None)

    async def _request(self, kind: str) -> None:
        self._begin(kind)
        await asyncio.sleep(self._delay())
        if self._rng.random() < self.read_fail_rate:
            raise StorageError("the object store answered 503")

    def _begin(self, kind: str) -> None:
        if self._closed:
            raise AlreadyClosedError("the object store is closed")
        self._sent[kind] += 1

    def _delay(self) -> float:
        return self._rng.uniform(0, self.delay_s_max) if self.delay_s_max else 0.0

    def statistics(self) -> ObjectStatistics:
        requests: dict[str, int] = {kind: self._sent[kind] for kind in KINDS}
        return ObjectStatistics(requests=requests, failures={}, slow_downs=0, per_s=0.0, in_flight=0)

    async def close(self) -> None:
        self._closed = True
