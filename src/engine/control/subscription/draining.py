"""`Draining`: which sealed segments one stream subscription has drained, that is, acknowledged in full (semantics 7 to
9).

This gates the order of a key across a split or merge: a child is assigned only when all its sealed ancestors are
drained for the subscription (`policy.assignment.open_segments`), so no consumer reads a key's newer messages before the
older ones are acknowledged.

    layout seals a segment --> ask its owner (bounded time) --> watch it --> owner reports backlog 0 --> drained
                                                   ^                              |
                                                   +---- seek back: all doubtful <+
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.errors import EngineError
from engine.limits import DRAIN_ASK_S, DRAIN_RECHECK_S
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName

log = logging.getLogger(__name__)


class Draining:
    """Loop thread only. `changed` is called when a segment becomes drained.

    A segment counts as not drained until its owner reports otherwise: reading a child too early breaks the order of
    keys, reading it too late only delays. Owners change, so watches are renewed periodically.
    """

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        layout: SegmentLayout,
        host: SegmentHost,
        changed: Callable[[], None],
    ) -> None:
        self.drained: set[int] = set()  # final, since sealed segments take no appends; only a seek makes them doubtful
        self._topic = topic
        self._subscription = subscription
        self._layout = layout
        self._host = host
        self._changed = changed
        self._watches: dict[int, Callable[[], None]] = {}  # functions that cancel the watches of the others
        self._asked: set[int] = set()
        self._seeks = 0
        self._held = False  # a seek is under way: reports of owners do not count
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def follow(self, layout: SegmentLayout) -> None:
        """Watch the sealed segments of this layout, and no others."""
        self._layout = layout
        self.drained &= layout.segments.keys()
        self._asked &= layout.segments.keys()
        for segment_id in self._watches.keys() - layout.segments.keys():
            self._watches.pop(segment_id)()
        if not (self._closed or self._held):
            self._watch_open()

    async def ask(self) -> None:
        """Ask the owners of segments that were not asked yet, so that the first shares are correct; watch the others.

        A segment whose owner does not answer in time counts as not drained.
        """
        new = {i: spec for i, spec in self._open().items() if i not in self._asked}
        if self._closed or self._held or not new:
            return
        self._asked |= new.keys()
        tasks = [asyncio.ensure_future(self._ask(i, spec, self._seeks)) for i, spec in new.items()]
        try:
            await asyncio.wait(tasks, timeout=DRAIN_ASK_S)
        finally:
            for task in tasks:
                task.cancel()
        self.follow(self._layout)

    async def _ask(self, segment_id: int, spec: SegmentSpec, seeks: int) -> None:
        try:
            backlog = await self._host.backlog(spec, self._subscription)
        except Exception as e:  # the watch will tell
            log.info("%s: its backlog is not known yet: %s", spec.name, e)
            return
        if not backlog and seeks == self._seeks and segment_id in self._layout.segments:
            self.drained.add(segment_id)
            if (cancel := self._watches.pop(segment_id, None)) is not None:
                cancel()

    def hold(self) -> None:
        """A seek begins, which may give any segment a backlog again: none counts as drained until again()."""
        self._held = True
        self._seeks += 1
        self.drained.clear()
        self._stop_watching()

    def again(self) -> None:
        """The seek is over: a segment counts as drained when its owner reports so anew."""
        self._held = False
        self._seeks += 1
        self.drained.clear()
        self._stop_watching()
        self.follow(self._layout)

    def close(self) -> None:
        """Stop calling `changed`. Idempotent."""
        self._closed = True
        self._stop_watching()

    def _open(self) -> dict[int, SegmentSpec]:
        """The sealed segments not known to be drained."""
        sealed = (s for s in self._layout.segments.values() if not s.active)
        specs = ((s.segment_id, segment_spec(self._topic, self._layout, s)) for s in sealed)
        return {i: spec for i, spec in specs if i not in self.drained}

    def _watch_open(self) -> None:
        waiting = self._open()
        for segment_id, spec in waiting.items():
            if segment_id in self._watches:
                continue
            drained = partial(self._segment_drained, segment_id)
            try:
                self._watches[segment_id] = self._host.watch_drained(spec, self._subscription, drained)
            except EngineError as e:
                log.warning("%s: cannot be watched yet: %s", spec.name, e)
        if waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAIN_RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        """Renew all watches: one may have failed, or ended with its owner."""
        self._stop_watching()
        self.follow(self._layout)

    def _segment_drained(self, segment_id: int) -> None:
        if self._watches.pop(segment_id, None) is not None:
            self.drained.add(segment_id)
            self._changed()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for cancel in self._watches.values():
            cancel()
        self._watches.clear()
