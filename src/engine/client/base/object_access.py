"""`ObjectAccess`: the store of objects as a client may read it, with credentials of its own.

The library is loaded and the store opened at the first use. What cannot be done is said once; meanwhile everything is
read through brokers, and after a while it is tried again: credentials are renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import AuthenticationError, AuthorizationError, CorruptionError, EngineError, StorageError
from engine.limits import KIB, MIB, OBJECT_CHUNK_SIZE

if TYPE_CHECKING:
    from engine.storage.objects.ports import ObjectStore

log = logging.getLogger(__name__)

AGAIN_S = 60.0
AHEAD_BYTES = 32 * MIB  # of all readers of a client together
PIECE_SIZE_MIN = 256 * KIB
PIECES_AHEAD = 2  # that are requested while another is read

OpenStore = Callable[[], "ObjectStore"]


class ReadAhead:
    """How much is requested at a time, so that all `readers` of a client together hold about `total` bytes of objects
    that were not cut into messages yet.
    """

    def __init__(self, total: int = AHEAD_BYTES) -> None:
        self._total = total
        self.readers = 0

    @property
    def piece(self) -> int:
        """The size of the next piece that a reader requests."""
        part = self._total // max(self.readers, 1) // (1 + PIECES_AHEAD)
        return max(PIECE_SIZE_MIN, min(part, OBJECT_CHUNK_SIZE))

    @property
    def pieces(self) -> int:
        """How many it requests while it reads another."""
        return PIECES_AHEAD if self.piece > PIECE_SIZE_MIN else 0


class ObjectAccess:
    """Of one client. Loop thread only. `open_store`: None: there is none. `ahead`: for all that is read of it."""

    def __init__(self, open_store: OpenStore | None, memory_limit: int) -> None:
        self.ahead = ReadAhead(min(AHEAD_BYTES, memory_limit // 4))
        self._open_store = open_store
        self._store: ObjectStore | None = None
        self._not_before = float("-inf")
        self._said: set[str] = set()

    @property
    def opened(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    def store(self) -> ObjectStore | None:
        """The store, open; None: brokers are to be asked."""
        if self._open_store is None or asyncio.get_running_loop().time() < self._not_before:
            return None
        if self._store is None:
            try:
                self._store = self._open_store()
            except EngineError as e:
                self.failed(e, lasting=True)
        return self._store

    def failed(self, error: Exception, *, lasting: bool = False) -> None:
        """It was tried, and brokers are asked instead. `lasting`: as with a refusal, it is not tried for a while."""
        if lasting or isinstance(error, (AuthenticationError, AuthorizationError, StorageError)):
            self._not_before = asyncio.get_running_loop().time() + AGAIN_S
        known = type(error).__name__
        level = logging.DEBUG if known in self._said else logging.WARNING
        if not isinstance(error, CorruptionError):  # each of those names another place
            self._said.add(known)
        log.log(level, "objects are read through brokers, not from their store: %s", error)

    async def close(self) -> None:
        """Refuse further requests. Idempotent."""
        store, self._store, self._open_store = self._store, None, None
        if store is not None:
            await store.close()
