"""Running watches over a table: which watch gets which change, and what a slow reader still has to be given.

A change is queued as a key, not as an event: each key is queued at most once, and is delivered in its latest state. A
key that was created and deleted before the reader saw it is dropped. So the queue never holds more than the keys that
the reader has seen, those of its snapshot, and those that exist now, however slow it is.

    snapshot (by version)  ->  SNAPSHOT_END  ->  queued keys, in the order of their changes

A change of a key that the snapshot has not reached yet changes nothing: the key is delivered at its place, in its new
state.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable

from engine._native.records.rows import Change, Row
from engine.metadata.keys import common_start, prefix_end
from engine.metadata.snapshots import Snapshot
from engine.metadata.store import Event, EventKind
from engine.metadata.table import Table, each_key

_NO_KEY = ""
_READ_AT_ONCE = 64  # events, then the loop serves other work


class TableWatch:
    """One watch. Loop thread only; one reader at a time."""

    def __init__(self, hub: WatchHub) -> None:
        self._hub = hub
        self._snapshot: Snapshot | None = None  # delivered before anything else
        # Key -> version of its change, in order of delivery. Ordered: popping the first item of a plain dict gets slow.
        self._owed: OrderedDict[str, int] = OrderedDict()
        # Queued keys that the reader does not know yet.
        self._unseen: set[str] = set()
        self.resumed = False  # whether it goes on behind a given version, and so starts without a snapshot
        self._read = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.on_close: Callable[[TableWatch], object] | None = None

    def matches(self, row: Row) -> bool:
        """Whether a row of the watched prefix or index is inside this watch."""
        raise NotImplementedError

    def detach(self) -> None:
        """Unregister from the hub."""
        raise NotImplementedError

    def start(self, snapshot: Snapshot) -> None:
        """Queue a snapshot: the rows by version, then its end. A reader may resume from any version in it."""
        self._snapshot = snapshot

    def resume(self, changed: dict[str, int]) -> None:
        """Queue the changes since the reader last read."""
        self.resumed = True
        self._owed.update(changed)

    def notice(self, change: Change) -> None:
        """Queue a change if it is inside this watch."""
        before = change.old is not None and self.matches(change.old)
        after = change.new is not None and self.matches(change.new)
        if before or after:
            self._hear(change, before, after)

    def _hear(self, change: Change, before: bool, after: bool) -> None:
        if self._snapshot is not None and self._snapshot.notice(change, before, after):
            pass  # inside the snapshot a key keeps its place and is delivered in its latest state
        elif (key := change.key) in self._unseen and not after:
            self._unseen.discard(key)
            del self._owed[key]
        else:
            if key in self._owed:
                self._owed.move_to_end(key)
            elif not before:
                self._unseen.add(key)
            self._owed[key] = change.version
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. Every so often the loop serves other work first."""
        self._read += 1
        if self._read % _READ_AT_ONCE == 0:
            await asyncio.sleep(0)
        while (snapshot := self._snapshot) is not None and not snapshot.in_order:
            snapshot.sort_some()
            await asyncio.sleep(0)
        while not self._owed and self._snapshot is None and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            await asyncio.sleep(0)  # the writer goes first: its caller waits for the answer
        if self._closed:
            raise StopAsyncIteration
        return self._next()

    def _next(self) -> Event:
        if (snapshot := self._snapshot) is not None:
            if (place := snapshot.take()) is not None:
                version, key = place
                return self._event(key, version)
            self._snapshot = None
            return Event(EventKind.SNAPSHOT_END, _NO_KEY, snapshot.version)
        key, version = self._owed.popitem(last=False)
        self._unseen.discard(key)
        return self._event(key, version)

    def _event(self, key: str, version: int) -> Event:
        row = self._hub.table.rows.get(key)
        if row is None or not self.matches(row):
            return Event(EventKind.DELETE, key, version)
        return Event(EventKind.PUT, key, version, row.record)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.detach()
        if self.on_close is not None:
            self.on_close(self)
        self._snapshot = None
        self._owed.clear()
        self._unseen.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def owed(self) -> int:
        """The events that wait to be read."""
        return len(self._owed) + (0 if self._snapshot is None else len(self._snapshot) + 1)


class PrefixWatch(TableWatch):
    """Watches keys with a prefix."""

    def __init__(self, hub: WatchHub, prefix: str) -> None:
        super().__init__(hub)
        self.prefix = prefix

    def matches(self, row: Row) -> bool:
        key: str = row.record.key
        return key.startswith(self.prefix)

    def notice(self, change: Change) -> None:
        """Queue a change, whose key has the prefix."""
        self._hear(change, change.old is not None, change.new is not None)

    def _event(self, key: str, version: int) -> Event:
        row = self._hub.table.rows.get(key)
        if row is None:
            return Event(EventKind.DELETE, key, version)
        return Event(EventKind.PUT, key, version, row.record)

    def detach(self) -> None:
        self._hub.drop_prefix(self)


class KeyWatch(PrefixWatch):
    """Watches one key."""

    def matches(self, row: Row) -> bool:
        key: str = row.record.key
        return key == self.prefix

    def notice(self, change: Change) -> None:
        """Queue a change, whose key begins as the watched one does."""
        if change.key == self.prefix:
            super().notice(change)


class IndexWatch(TableWatch):
    """Watches records whose key in an index lies in a range."""

    def __init__(self, hub: WatchHub, index: str, start: str, end: str) -> None:
        super().__init__(hub)
        self.index = index
        self.common = common_start(start, end)  # of all index keys in the range
        self._start = start
        self._end = end

    def matches(self, row: Row) -> bool:
        index_keys = each_key(row.indexes.get(self.index, ()))
        return any(self._start <= index_key < self._end for index_key in index_keys)

    def detach(self) -> None:
        self._hub.drop_index(self)


class WatchHub:
    """All watches of one table. A change costs one look-up per distinct length of a watched prefix that begins as its
    key does, and of its index keys: so watches of single keys cost the changes of others nothing, however many they
    are.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        # In dicts: watches are notified in the order in which they were opened.
        self._by_prefix: dict[str, dict[PrefixWatch, None]] = {}
        self._by_index: dict[str, dict[str, dict[IndexWatch, None]]] = {}  # and by what the range has in common
        # Lengths of watched prefixes, by what they have up to the second slash; "" for those that end before it.
        self._lengths: dict[str, Counter[int]] = {}
        self._index_lengths: dict[str, Counter[int]] = {}

    def notify(self, changes: list[Change]) -> None:
        """Notify watches of changes that are visible in the table."""
        lengths, by_prefix, by_index = self._lengths, self._by_prefix, self._by_index
        short, watched = lengths.get("", ()), by_index.keys()
        for change in changes:
            key = change.key
            for length in short:
                for prefix_watch in by_prefix.get(key[:length], ()):
                    prefix_watch.notice(change)
            head = key[: key.find("/", 1) + 1]  # _head_of() of it, for each change
            if head in lengths and head:
                for length in lengths[head]:
                    for prefix_watch in by_prefix.get(key[:length], ()):
                        prefix_watch.notice(change)
            if by_index:
                old, new = change.old, change.new
                if (new is not None and not watched.isdisjoint(new.indexes)) or (
                    old is not None and not watched.isdisjoint(old.indexes)
                ):
                    self._notify_of_indexes(change)

    def _notify_of_indexes(self, change: Change) -> None:
        row, old, by_index = change.new or change.old, change.old, self._by_index
        assert row is not None
        for index in row.indexes if row is old or old is None else {**old.indexes, **row.indexes}:
            if index in by_index:
                for index_watch in self._watches_of(index, change):
                    index_watch.notice(change)

    def _watches_of(self, index: str, change: Change) -> Iterable[IndexWatch]:
        """Those that may be concerned, in the order in which they were opened, as far as they watch the same range."""
        by_common = self._by_index[index]
        keys = {
            key for row in (change.old, change.new) if row is not None for key in each_key(row.indexes.get(index, ()))
        }
        found: dict[IndexWatch, None] = {}
        for length in self._index_lengths[index]:
            for key in keys:
                found.update(by_common.get(key[:length], {}))
        return found

    def watch_prefix(self, prefix: str, from_version: int | None) -> PrefixWatch:
        """A started watch over the keys with a prefix; "" is every key."""
        watch = PrefixWatch(self, prefix)
        changed = None if from_version is None else self.table.changed_since(from_version)
        if changed is not None:
            watch.resume({key: at for key, at in changed.items() if key.startswith(prefix)})
        else:
            keys = self.table.keys(prefix, prefix_end(prefix)) if prefix else list(self.table.rows)
            watch.start(Snapshot(self.table, keys))
        self._add(watch)
        return watch

    def watch_key(self, key: str) -> KeyWatch:
        """A started watch over one key."""
        watch = KeyWatch(self, key)
        watch.start(Snapshot(self.table, [key] if key in self.table.rows else []))
        self._add(watch)
        return watch

    def _add(self, watch: PrefixWatch) -> None:
        self._by_prefix.setdefault(watch.prefix, {})[watch] = None
        self._lengths.setdefault(_head_of(watch.prefix), Counter())[len(watch.prefix)] += 1

    def watch_index(self, index: str, start: str, end: str) -> IndexWatch:
        """A started watch over a range of an index."""
        watch = IndexWatch(self, index, start, end)
        found = self.table.index_keys(index, start, end)
        watch.start(Snapshot(self.table, [key for _, key in found], index))
        self._by_index.setdefault(index, {}).setdefault(watch.common, {})[watch] = None
        self._index_lengths.setdefault(index, Counter())[len(watch.common)] += 1
        return watch

    def drop_prefix(self, watch: PrefixWatch) -> None:
        watches = self._by_prefix[watch.prefix]
        del watches[watch]
        if not watches:
            del self._by_prefix[watch.prefix]
        head = _head_of(watch.prefix)
        self._lengths[head][len(watch.prefix)] -= 1
        self._lengths[head] += Counter()  # drops lengths without watches
        if not self._lengths[head]:
            del self._lengths[head]

    def drop_index(self, watch: IndexWatch) -> None:
        by_common, lengths = self._by_index[watch.index], self._index_lengths[watch.index]
        watches = by_common[watch.common]
        del watches[watch]
        lengths[len(watch.common)] -= 1
        if not watches:
            del by_common[watch.common]
        if not lengths[len(watch.common)]:
            del lengths[len(watch.common)]
        if not by_common:
            del self._by_index[watch.index], self._index_lengths[watch.index]


def _head_of(key: str) -> str:
    """What is before the second slash, with it; "" where there is none."""
    return key[: key.find("/", 1) + 1]
