"""`Mirror`: records that this process has read from a remote store, kept up to date by the service's reports.

A key is kept when it is read by a `mirror` read and present; the service then reports its changes over the same
connection. Every report, answer and event passes here in the order in which the service sent it; of two states of a key
the one with the larger version holds. What is not certain is not kept, and goes to the store.

    an own put, confirmed             its record replaces the kept one
    an own deletion, or a refused or  the key is kept no more; the next read goes to the store
    uncertain write
    an event of a watch               holds for its key; and as readers expect that a read behind an event sees all that
                                      was there at the event, nothing is believed until the reports have reached it
    the connection is lost            nothing is kept

So a kept record is the key's state at some time after the last own write of it, and after every event that a
watch of this process has reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.metadata.store import Event, Record, Stat

if TYPE_CHECKING:
    from engine.metadata.remote import RemoteMetadataStore

KEPT_MAX = 50_000  # keys; above it, all are forgotten
_NEVER = 1 << 62  # larger than every version


class Mirror:
    """Loop thread only."""

    def __init__(self) -> None:
        self._kept: dict[str, Record] = {}
        self._reading: dict[str, tuple[int, int]] = {}  # keys being read: by how many, the version that must be there
        self._position = 0  # the version up to which changes of kept keys were reported
        self._heard = 0  # the largest version of an event of a watch

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def full(self) -> bool:
        """Whether so many keys are kept that all should be forgotten, here and by the service."""
        return len(self._kept) >= KEPT_MAX

    def get(self, key: str) -> Record | None:
        """The record, if it is kept and up to date; None: the store must be read."""
        return self._kept.get(key) if self._position >= self._heard else None

    # -- reading from the store ------------------------------------------------------------------------------------

    def begin(self, key: str) -> None:
        """The key is being read from the store, to be kept."""
        readers, least = self._reading.get(key, (0, 0))
        self._reading[key] = (readers + 1, least)

    def end(self, key: str, record: Record | None) -> None:
        """It was read; None: it is absent, or the read has failed."""
        readers, least = self._reading.pop(key)
        if readers > 1:
            self._reading[key] = (readers - 1, least)
        known = self._kept.get(key)
        version = max(least, 0 if known is None else known.stat.version)
        if record is not None and record.stat.version >= version:
            self._kept[key] = record

    def _outdate(self, key: str, version: int) -> None:
        """What is being read of the key must have this version at least."""
        reading = self._reading.get(key)
        if reading is not None:
            self._reading[key] = (reading[0], max(reading[1], version))

    # -- what happens to keys --------------------------------------------------------------------------------------

    def wrote(self, key: str, value: bytes, stat: Stat) -> None:
        """An own put was confirmed."""
        self._outdate(key, stat.version)
        known = self._kept.get(key)
        if known is not None and known.stat.version < stat.version:
            self._kept[key] = Record(key, value, stat)

    def doubt(self, key: str) -> None:
        """An own write may have changed the key: what is being read of it may be older."""
        self._kept.pop(key, None)
        self._outdate(key, _NEVER)

    def doubt_range(self, start: str, end: str) -> None:
        """Likewise, all keys of a range."""
        for key in [key for key in (*self._kept, *self._reading) if start <= key < end]:
            self.doubt(key)

    def doubt_session(self, session: int) -> None:
        """Likewise, the records of a session that has ended."""
        for key in [key for key, record in self._kept.items() if record.stat.session == session]:
            del self._kept[key]
        for key in self._reading:
            self._outdate(key, _NEVER)

    def changed(self, event: Event) -> None:
        """A key has changed, as a watch or the service reports."""
        self._outdate(event.key, event.version)
        known = self._kept.get(event.key)
        if known is None or known.stat.version >= event.version:
            return
        if event.record is None:
            del self._kept[event.key]
        else:
            self._kept[event.key] = event.record

    def heard(self, version: int) -> None:
        """A watch has reported an event of this version."""
        self._heard = max(self._heard, version)

    def reported(self, position: int) -> None:
        """Changes of kept keys were reported up to this version."""
        self._position = position

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._position = self._heard = 0
        for key in self._reading:
            self._outdate(key, _NEVER)


class MirrorReads:
    """Reads from what this process knows: of records by key. The others go to the service."""

    def __init__(self, store: RemoteMetadataStore) -> None:
        self._store = store
        self.list = store.list
        self.list_keys = store.list_keys
        self.list_index = store.list_index

    async def get(self, key: str) -> Record | None:
        self._store.check_open()
        return self._store.known.get(key) or await self._store.read_kept(key)
