"""`RemoteSession`: the holder's side of a session with a metadata service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import AlreadyClosedError

if TYPE_CHECKING:
    from engine.metadata.remote import RemoteMetadataStore


class RemoteSession:
    """A session at the service. `deadline`: counted from before the request that last prolonged it was sent."""

    def __init__(self, store: RemoteMetadataStore, ident: int, timeout: float, deadline: float) -> None:
        self.id = ident
        self.timeout = timeout
        self.deadline = deadline
        self._store = store
        self._over = False

    async def refresh(self) -> None:
        if self._over:
            raise AlreadyClosedError(f"the metadata session {self.id} has ended")
        sent = await self._store.refresh_session(self)
        self.deadline = max(self.deadline, sent + self.timeout)

    async def close(self) -> None:
        if not self._over:
            self._over = True
            await self._store.end_session(self)
