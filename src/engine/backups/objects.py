"""`ObjectDestination`: backups in an object store."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.aio.portal import Portal
from engine.backups.destination import Stored
from engine.backups.manifest import LOCKS
from engine.clock import SystemClock
from engine.errors import LimitExceededError, NotFoundError, UnknownOutcomeError
from engine.storage.objects.ports import ObjectExistsError, ObjectInfo, ObjectMissingError
from engine.storage.objects.remote import RemoteObjectStore

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

T = TypeVar("T")

LOCK_S = 120.0  # a lock that was not renewed for so long is over
_RENEW_S = 30.0
_ATTEMPTS = 3
_Infos = list[ObjectInfo]  # inside the class, `list` is a method


class ObjectDestination:
    """A prefix of a bucket, with the credentials of the environment. Its requests run on a loop of its own."""

    def __init__(self, url: str, environment: Mapping[str, str], rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self._portal = Portal("engine-backup")
        try:
            self._store = self._portal.call(lambda: RemoteObjectStore.open(url, environment, rng=rng))
        except BaseException:
            self._portal.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        try:
            return self._portal.run(work)
        except ObjectMissingError:
            raise NotFoundError(f"{self._url}/{name} is missing") from None

    def is_within(self, directory: Path) -> bool:
        return False

    def put(self, name: str, buffers: Sequence[Buffer], *, large: bool = False) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if large:
                    size = sum(memoryview(buffer).nbytes for buffer in buffers)
                    self._run(self._store.put_multipart(name, list(buffers), size), name)
                else:
                    self._run(self._store.put_if_absent(name, buffers), name)
                return
            except ObjectExistsError:
                if self.get(name) == b"".join(bytes(b) for b in buffers):
                    return  # of an attempt before, whose answer was lost
                raise LimitExceededError(f"{self._url}/{name} was written by another backup meanwhile") from None
            except UnknownOutcomeError:
                if attempt == _ATTEMPTS:
                    raise

    def get(self, name: str) -> bytes:
        return bytes(self._run(self._store.get(name), name))

    def read(self, name: str, start: int, size: int) -> memoryview:
        return self._run(self._store.get_range(name, start, start + size), name)

    def list(self, folder: str) -> list[Stored]:
        return [Stored(info.name, info.size) for info in self.infos(folder)]

    def infos(self, folder: str) -> _Infos:
        """With their times."""

        async def collect() -> _Infos:
            return [info async for info in self._store.list(folder)]

        return self._run(collect(), folder)

    def delete(self, names: Sequence[str]) -> None:
        self._run(self._store.delete(list(names)), "")

    def lock(self) -> ObjectLock:
        return ObjectLock(self, f"{self._rng.getrandbits(64):016x}", self._url)

    def close(self) -> None:
        if not self._portal.closed:
            self._portal.run(self._store.close())
            self._portal.close()


class ObjectLock:
    """Objects that are written one after the other. A backup whose newest one is younger than LOCK_S, by the store's
    own clock, works here.
    """

    def __init__(self, destination: ObjectDestination, ident: str, where: str) -> None:
        self._destination = destination
        self._ident = ident
        self._where = where
        self._clock = SystemClock()
        self._number = 0
        self._renewed = 0.0
        self._put()

    def _put(self) -> None:
        self._number += 1
        name = f"{LOCKS}/{self._ident}-{self._number:08d}"
        self._destination.put(name, [self._ident.encode()])
        infos = self._destination.infos(LOCKS)
        now_ms = max(info.modified_ms for info in infos if info.name == name)
        mine = [info.name for info in infos if info.name.startswith(f"{LOCKS}/{self._ident}-")]
        others = [info for info in infos if info.name not in mine]
        if any(now_ms - info.modified_ms < LOCK_S * 1000 for info in others):
            self._destination.delete(mine)
            raise LimitExceededError(
                f"{self._where} is being changed by another backup; one that was killed ends after {LOCK_S:g} s"
            )
        self._destination.delete([info.name for info in others] + [each for each in mine if each != name])
        self._renewed = self._clock.monotonic()

    def renew(self) -> None:
        if self._clock.monotonic() - self._renewed > _RENEW_S:
            self._put()

    def release(self) -> None:
        mine = [info.name for info in self._destination.infos(LOCKS) if self._ident in info.name]
        if mine:
            self._destination.delete(mine)
