"""`Known`: what this process last saw of keys in etcd, so that most writes need no read before them.

It is a guess: each transaction demands that the keys which it touches are as they were known, and returns their true
state where they are not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from engine.metadata.etcd.layout import decoded, version_of
from engine.metadata.store import Indexes
from engine.metadata.table import NO_INDEXES

KEPT_MAX = 50_000


class KeyState(msgspec.Struct, frozen=True, gc=False):
    """A key of etcd. `revision`: of its last change; 0: it is absent. `last`: of a counter, the last sequence."""

    revision: int
    position: int = 0
    created_ms: int = 0
    indexes: Indexes = NO_INDEXES
    last: int = 0

    @property
    def version(self) -> int:
        """Of the record."""
        return version_of(self.revision, self.position)


ABSENT_KEY = KeyState(0)


class Known:
    """The states of the keys that were used last. Loop thread only."""

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, KeyState] = OrderedDict()

    def get(self, key: bytes) -> KeyState | None:
        """None: not known."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: bytes, state: KeyState) -> None:
        """Learn a state, unless a later one is known."""
        before = self._states.get(key)
        if state.revision and before is not None and before.revision > state.revision:
            return
        self._states[key] = state
        self._states.move_to_end(key)
        if len(self._states) > KEPT_MAX:
            self._states.popitem(last=False)

    def forget(self, key: bytes) -> None:
        self._states.pop(key, None)


def record_state(kv: Any, where: str) -> KeyState:
    """The state of a record that was read. Raises CorruptionError."""
    stored = decoded(kv, where)
    return KeyState(kv.mod_revision, stored.position, stored.created_ms, stored.indexes)


def counter_state(kv: Any) -> KeyState:
    """The state of a counter of sequences."""
    return KeyState(kv.mod_revision, last=int(kv.value))
