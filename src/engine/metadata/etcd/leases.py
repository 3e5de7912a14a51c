"""Leases: grants, and sessions that are leases. Their seconds are whole numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from math import ceil

from engine.clock import Clock
from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster, LeaseNotFoundError


async def grant(cluster: Cluster, seconds: float) -> tuple[int, int]:
    """A new lease: its id, which etcd chooses, and the seconds that it was granted for, which etcd may have raised.

    One whose answer was lost expires unused.
    """
    answer = await cluster.call("LeaseGrant", m.LeaseGrantRequest(TTL=max(1, ceil(seconds))))
    return answer.ID, answer.TTL


class EtcdSession:
    """A session of an EtcdMetadataStore: a lease, which deletes the records under it when it ends."""

    def __init__(self, cluster: Cluster, clock: Clock, lease: int, deadline: float) -> None:
        self.id = lease
        self.deadline = deadline
        self.ended = False
        self.closed: Callable[[EtcdSession], object] = lambda session: None
        self._cluster = cluster
        self._clock = clock

    @property
    def over(self) -> bool:
        """Whether nothing more may be written under it."""
        return self.ended

    async def refresh(self) -> None:
        """See Session. Raises AlreadyClosedError, TimeoutError."""
        if self.ended:
            raise AlreadyClosedError(f"the metadata session {self.id} has ended")
        due = max(self.deadline, self._clock.monotonic() + 0.2)
        seconds, sent = await self._cluster.keep_alive(self.id, due)
        if seconds <= 0:
            self.ended = True
            self.closed(self)
            raise AlreadyClosedError(f"the metadata session {self.id} has ended")
        self.deadline = max(self.deadline, sent + seconds)

    async def alive(self) -> bool:
        """Whether etcd has it."""
        answer = await self._cluster.call("LeaseTimeToLive", m.LeaseTimeToLiveRequest(ID=self.id))
        if answer.TTL <= 0:
            self.ended = True
        return not self.ended

    async def close(self) -> None:
        """See Session. Where etcd cannot be reached, it expires there."""
        if not self.ended:
            self.ended = True
            self.closed(self)
            await self.revoke(None)

    async def revoke(self, due: float | None) -> None:
        """End the lease, by `due`."""
        self.ended = True
        with contextlib.suppress(LeaseNotFoundError):
            await self._cluster.call("LeaseRevoke", m.LeaseRevokeRequest(ID=self.id), due=due)


async def end_all(sessions: list[EtcdSession], due: float) -> None:
    """End sessions, as far as etcd can be reached."""
    for session in sessions:
        with contextlib.suppress(EngineError):
            await session.revoke(due)
