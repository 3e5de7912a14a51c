"""Bugs to plant into backups, as in object_bugs.py: one into the broker, one into what copies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from engine.backups import making
from engine.backups.destination import Destination
from engine.backups.manifest import PACKS
from engine.model.names import SegmentName
from engine.processes.backups import Standing, let_go
from engine.storage.frozen import hold
from engine.storage.shared_moment import Held
from engine.storage.store import Freeze, SegmentStore
from tests.kit.object_bugs import Plant

EARLY_S = 0.5
LATE_S = 2.0


def logs_of_an_earlier_moment(plant: Plant) -> None:
    """The ends of the logs are taken before the records of the metadata, and not in the same turn of the loop."""
    settled = SegmentStore.settled
    early: Mapping[SegmentName, Held] = {}

    @asynccontextmanager
    async def and_wait(store: SegmentStore) -> AsyncIterator[None]:
        nonlocal early
        async with settled(store):
            early = {name: hold(segment) for name, segment in store._segments.items()}
            await asyncio.sleep(EARLY_S)
            yield

    plant(SegmentStore, "settled", and_wait)
    plant(SegmentStore, "freeze", lambda store, into: Freeze(store, store._context, into, early))


def processes_go_on_before_the_moment(plant: Plant) -> None:
    """The records of the metadata are taken a while after the processes were released."""
    still = Standing.still

    @asynccontextmanager
    async def released(standing: Standing, directory: str) -> AsyncIterator[None]:
        async with still(standing, directory):
            let_go(directory)
            await asyncio.sleep(EARLY_S)
            yield

    plant(Standing, "still", released)


class _Late:
    """A destination that stores packs a while after the manifest which names them."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._packs: list[tuple[str, Any, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._destination, name)

    def put(self, name: str, data: Any, **more: Any) -> None:
        if name.startswith(f"{PACKS}/"):
            self._packs.append((name, data, more))
            return
        self._destination.put(name, data, **more)
        time.sleep(LATE_S)
        for pack, buffers, options in self._packs:
            self._destination.put(pack, buffers, **options)


def named_before_it_is_stored(plant: Plant) -> None:
    """The manifest, which says that a generation is there, is written before its packs."""
    real = making._copy

    def late(kept: Any, destination: Any, *more: Any) -> Any:
        return real(kept, _Late(destination), *more)  # type: ignore[arg-type]

    plant(making, "_copy", late)
