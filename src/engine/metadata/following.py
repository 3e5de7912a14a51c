"""Follows the store until it is closed: a watch that fails is restarted, and no change is missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.store import Event, EventKind, MetadataStore, OutcomeUnknownError, Watch

log = logging.getLogger(__name__)

RESTART_S = 0.5
_CHECKED_AT_ONCE = 1_000  # keys, between turns of the loop


async def follow(
    metadata: MetadataStore,
    watch: Callable[[], Watch],
    heard: Callable[[Event], None],
    known: Callable[[], Collection[str]],
    *,
    what: str,
) -> None:
    """Call `heard` with every event of `watch()`, a watch that starts with a snapshot, until the store is closed.

    A failed watch misses the changes up to the start of the next one. Their effect shows in the next snapshot: it
    repeats existing records, and each key of `known()` (the keys that the caller holds facts of) that no longer exists
    is reported as a DELETE before the SNAPSHOT_END.
    """
    while True:
        try:
            await _follow_one(metadata, watch(), heard, known)
            return  # the store was closed
        except AlreadyClosedError:
            return
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the watch of %s failed, restarting it: %s", what, e)
            await asyncio.sleep(RESTART_S)


async def _follow_one(
    metadata: MetadataStore, watch: Watch, heard: Callable[[Event], None], known: Callable[[], Collection[str]]
) -> None:
    shown: set[str] | None = set()
    try:
        async for event in watch:
            if event.kind is EventKind.SNAPSHOT_END:
                await _report_gone(metadata, list(known()), shown or set(), heard)
                shown = None
            elif shown is not None:
                shown.add(event.key)
            heard(event)
    finally:
        watch.close()


async def _report_gone(
    metadata: MetadataStore, known: list[str], shown: set[str], heard: Callable[[Event], None]
) -> None:
    for i, key in enumerate(known):
        if i % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # let the loop serve other work
        if key not in shown:
            await _report_if_gone(metadata, key, heard)


async def _report_if_gone(metadata: MetadataStore, key: str, heard: Callable[[Event], None]) -> None:
    """Report a missing key as deleted. One that was created after the snapshot is left to the watch.

    The version is above any that this process has seen of the key, and below that of a later record of the same key.
    """
    version = metadata.version
    if await metadata.newest.get(key) is None:
        heard(Event(EventKind.DELETE, key, version))
