"""`RemoteWatch`: a watch of a remote store, over any number of connections.

The service sends events as fast as this process receives them. What its reader has not taken yet collapses per key, as
in a watch of a local store: the queue holds a key at most once.

After a lost connection the watch is resumed by the version of the last event, or begun anew: then the service sends a
snapshot, of which the reader is told only what it does not know, and of each key that the snapshot does not show, that
it was deleted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from engine.metadata import protocol
from engine.metadata.store import Event, EventKind

Watched = str | tuple[str] | tuple[str, str, str]  # a prefix, (key,), or (index, start, end)

_NO_KEY = ""
_READ_AT_ONCE = 64  # events, then the loop serves other work


class RemoteWatch:
    """One watch. Loop thread only; one reader at a time.

    A watch that its owner has resumed itself, `from_version`, passes everything on as it comes: only its reader knows
    what it knew before.
    """

    def __init__(self, ident: int, what: Watched, from_version: int | None, ended: Callable[[int], None]) -> None:
        """`ended`: called with `ident` when it is closed."""
        self.ident = ident
        self._what = what
        self._alone = what[0] if isinstance(what, tuple) and len(what) == 1 else None  # the only key
        self.ended = ended
        self._passes = from_version is not None
        self._last = from_version  # the version to resume from; None: a snapshot is needed
        self._newest = 0  # of all events so far
        self._whole = self._passes  # whether the reader's first snapshot was received to its end
        self._known: dict[str, int] = {}  # key -> version of what the reader was told, or will be
        self._shown: set[str] | None = None  # by the snapshot that is being received
        self._queue: OrderedDict[str, Event] = OrderedDict()
        self._unseen: set[str] = set()  # queued keys that the reader does not know yet
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._closed = False
        self._read = 0

    # -- towards the service ---------------------------------------------------------------------------------------

    def request(self) -> protocol.Watch | protocol.WatchIndex:
        """What begins it on a new connection."""
        self.begin_anew()
        if isinstance(self._what, str):
            return protocol.Watch(self.ident, self._what, self._last if self._whole else None)
        if len(self._what) == 1:
            return protocol.Watch(self.ident, self._what[0], None, alone=True)
        return protocol.WatchIndex(self.ident, *self._what)

    def begin_anew(self) -> None:
        """What is received next begins with a snapshot, unless begun() says that it is resumed."""
        self._shown = set()

    def begun(self, *, resumed: bool) -> None:
        """The service has begun it, where the connection before had ended it; otherwise it sends a snapshot."""
        if resumed:
            self._shown = None

    def received(self, event: Event) -> None:
        """The next event of the service."""
        self._newest = max(self._newest, event.version)
        if self._alone is not None and event.key not in (self._alone, _NO_KEY):
            return  # of a service that knows prefixes alone
        if event.kind is EventKind.SNAPSHOT_END:
            self._snapshot_ended(event)
        elif event.record is not None:
            self._put(event, event.record.stat.version)
        elif self._passes or self._known.pop(event.key, None) is not None:
            self._owe(event)
        if self._whole and self._shown is None:
            self._last = self._newest
        if self._waiter is not None and self._queue and not self._waiter.done():
            self._waiter.set_result(None)

    def _put(self, event: Event, version: int) -> None:
        known = self._known.get(event.key)
        if self._shown is not None:
            self._shown.add(event.key)
            if known == version:
                return  # the reader knows it from an earlier connection
        if not self._passes:
            self._known[event.key] = version
            if known is None and event.key not in self._queue:
                self._unseen.add(event.key)
        self._owe(event)

    def _snapshot_ended(self, event: Event) -> None:
        shown, self._shown = self._shown or set(), None
        if not self._passes:
            for key in [key for key in self._known if key not in shown]:
                del self._known[key]
                self._owe(Event(EventKind.DELETE, key, event.version))
        if self._passes or not self._whole:
            self._queue[_NO_KEY] = event
        self._whole = True

    def _owe(self, event: Event) -> None:
        key = event.key
        queued = self._queue.get(key)
        if event.record is None and key in self._unseen:
            self._unseen.discard(key)
            self._queue.pop(key, None)
            return
        if queued is not None and event.record is not None and self._in_snapshot(queued):
            event = Event(event.kind, key, queued.version, event.record)  # keeps its place, in its latest state
        elif queued is not None:
            self._queue.move_to_end(key)
        self._queue[key] = event

    def _in_snapshot(self, queued: Event) -> bool:
        """Whether a queued event is in front of a queued end of the snapshot."""
        end = self._queue.get(_NO_KEY)
        return end is not None and queued.version <= end.version

    def fail(self, error: Exception) -> None:
        """The service has ended it: its reader gets the error behind what is queued."""
        self._error = error
        self._wake()
        self.close()

    # -- towards the reader ----------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. Every so often the loop serves other work first. Raises what has ended it at the service."""
        self._read += 1
        if self._read % _READ_AT_ONCE == 0:
            await asyncio.sleep(0)
        while not self._queue and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            await asyncio.sleep(0)  # the writer goes first: its caller waits for the answer
        if self._error is not None and not self._queue:
            error, self._error = self._error, None
            raise error
        if self._closed and self._error is None:
            raise StopAsyncIteration
        key, event = self._queue.popitem(last=False)
        self._unseen.discard(key)
        return event

    def close(self) -> None:
        """End the iteration. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.ended(self.ident)
        if self._error is None:
            self._queue.clear()
        self._known.clear()
        self._unseen.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def owed(self) -> int:
        """The events that wait to be read, as far as they have arrived."""
        return len(self._queue)
