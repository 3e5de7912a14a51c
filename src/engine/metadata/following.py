"""Following the store for as long as it is open: a watch that breaks off is started again, and nothing is missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.store import Event, EventKind, MetadataStore, OutcomeUnknownError, Watch

log = logging.getLogger(__name__)

RESTART_S = 0.5
_LOOKED_AT_ONCE = 1_000  # keys


async def follow(
    metadata: MetadataStore,
    watch: Callable[[], Watch],
    heard: Callable[[Event], None],
    known: Callable[[], Collection[str]],
    *,
    what: str,
) -> None:
    """Call `heard` for everything that `watch()`, a watch with a snapshot, says, until the store is closed.

    A watch that breaks off misses what happens before the next one begins. That shows in its snapshot: what is there,
    is said again; what `known()` names, the keys the caller holds facts of, and is gone, `heard` gets as a DELETE,
    before it gets the SNAPSHOT_END.
    """
    while True:
        try:
            await _follow_one(metadata, watch(), heard, known)
            return  # the store was closed
        except AlreadyClosedError:
            return
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the watch of %s broke off, starting it again: %s", what, e)
            await asyncio.sleep(RESTART_S)


async def _follow_one(
    metadata: MetadataStore, watch: Watch, heard: Callable[[Event], None], known: Callable[[], Collection[str]]
) -> None:
    shown: set[str] | None = set()
    try:
        async for event in watch:
            if event.kind is EventKind.SNAPSHOT_END:
                await _look_for_gone(metadata, list(known()), shown or set(), heard)
                shown = None
            elif shown is not None:
                shown.add(event.key)
            heard(event)
    finally:
        watch.close()


async def _look_for_gone(
    metadata: MetadataStore, known: list[str], shown: set[str], heard: Callable[[Event], None]
) -> None:
    for i, key in enumerate(known):
        if i % _LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # others are served
        if key not in shown:
            await _look(metadata, key, heard)


async def _look(metadata: MetadataStore, key: str, heard: Callable[[Event], None]) -> None:
    """Say that a key is gone, unless it is younger than the snapshot: then the watch says so next.

    The version is above all that anybody here has seen of the key, and below that of another one of its name.
    """
    version = metadata.version
    if await metadata.get(key) is None:
        heard(Event(EventKind.DELETE, key, version))
