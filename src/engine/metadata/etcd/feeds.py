"""`Feed`: turns the events of etcd for one watch into those of the interface.

etcd reports a revision of a watcher whole. The events of one revision have versions by their positions: a record says
its own, and a deletion counts as the one behind the event before it, which is never too large.

A watch of an index is a watcher of its rows. A record has a row for each of its keys there, so what happens to the rows
of a record in one revision is one event of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.metadata.etcd import messages as m
from engine.metadata.etcd.layout import Layout, Stored, decoded, record_of, revision_of, version_of
from engine.metadata.keys import common_start
from engine.metadata.remote_watch import RemoteWatch
from engine.metadata.store import Event, EventKind, Record


class Heard(NamedTuple):
    """One event; of a put without `record`, whose row does not carry it, that must be read."""

    key: str
    version: int
    record: Record | None
    deleted: bool


class Feed:
    """One watch of a reader, and its watcher in etcd. `range`: the keys that it watches."""

    def __init__(self, watch: RemoteWatch, layout: Layout, keys: tuple[bytes, bytes], from_version: int | None) -> None:
        self.watch = watch
        self.range = keys
        self.common = common_start(*keys)  # of all keys in the range
        self.ident = 0  # of the watcher in the present stream
        self.revision = 0  # all up to it has been received
        self.live = False  # etcd has the watcher
        self.after = from_version or 0  # the reader has seen the events up to this version
        self._layout = layout

    def covers(self, key: bytes) -> bool:
        return self.range[0] <= key < self.range[1]

    def snapshot(self, found: Sequence[Any]) -> list[Heard]:
        """The records that are there, in the order of their versions."""
        heard = [self._put(kv, decoded(kv, self._key_of(kv))) for kv in found]
        return sorted(heard, key=lambda one: one.version)

    def take(self, revision: int, events: Sequence[Any]) -> list[Heard]:
        """The events of one revision."""
        heard, position = [], -1
        for event in events:
            if event.type == m.DELETED:
                position += 1
                heard.append(self._deleted(event.kv, version_of(revision, position)))
            else:
                stored = decoded(event.kv, self._key_of(event.kv))
                position = stored.position
                heard.append(self._put(event.kv, stored))
        self.revision = max(self.revision, revision)
        return [one for one in heard if one.version > self.after]

    def _key_of(self, kv: Any) -> str:
        return self._layout.key_of(kv.key)

    def _put(self, kv: Any, stored: Stored) -> Heard:
        record = record_of(self._key_of(kv), kv, stored)
        return Heard(record.key, record.stat.version, record, deleted=False)

    def _deleted(self, kv: Any, version: int) -> Heard:
        return Heard(self._key_of(kv), version, None, deleted=True)


class IndexFeed(Feed):
    """The feed of a watch of an index."""

    def __init__(self, watch: RemoteWatch, layout: Layout, keys: tuple[bytes, bytes]) -> None:
        super().__init__(watch, layout, keys, None)
        self._rows: dict[str, set[str]] = {}  # key -> its index keys in the range

    def snapshot(self, found: Sequence[Any]) -> list[Heard]:
        self._rows.clear()
        heard = {}
        for kv in found:
            index_key, key = self._layout.row_of(kv.key)
            self._rows.setdefault(key, set()).add(index_key)
            heard[key] = self._put(kv, decoded(kv, key))
        return sorted(heard.values(), key=lambda one: one.version)

    def take(self, revision: int, events: Sequence[Any]) -> list[Heard]:
        """Rows of one record become one event, at the place of the first."""
        puts: dict[str, Heard | None] = {}
        for event in events:
            index_key, key = self._layout.row_of(event.kv.key)
            if event.type == m.DELETED:
                self._rows.get(key, set()).discard(index_key)
                puts.setdefault(key, None)
            else:
                self._rows.setdefault(key, set()).add(index_key)
                puts[key] = self._put(event.kv, decoded(event.kv, key))
        self.revision = max(self.revision, revision)
        heard, position = [], -1
        for key, put in puts.items():
            if put is not None:
                heard.append(put)
                continue
            if not self._rows.get(key):
                self._rows.pop(key, None)
                heard.append(Heard(key, version_of(revision, position + 1), None, deleted=True))
        return sorted(heard, key=lambda one: one.version)

    def _key_of(self, kv: Any) -> str:
        return self._layout.row_of(kv.key)[1]

    def _put(self, kv: Any, stored: Stored) -> Heard:
        key = self._key_of(kv)
        version = version_of(kv.mod_revision, stored.position)
        record = None if stored.value is None else record_of(key, kv, stored)
        return Heard(key, version, record, deleted=False)


def event_of(one: Heard) -> Event:
    kind = EventKind.DELETE if one.deleted else EventKind.PUT
    return Event(kind, one.key, one.version, one.record)


def resumes(version: int | None, newest: int) -> bool:
    """Whether a watch may go on behind a version that its reader names: it was given out, and its place is exact."""
    return version is not None and 0 < version <= newest and revision_of(version) > 0
