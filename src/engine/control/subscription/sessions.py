"""`ConsumerSession`: one consumer name in one subscription, from registration until it leaves or expires (PIP-468).

The registration is durable; the connection and the grace timer exist in memory only.

    JOINING --> CONNECTED <--> DISCONNECTED (grace timer runs) --> ENDED
        |            |______________________________________________^
        +--> ENDED
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from engine.control.base.ports import ConsumerChannel
from engine.errors import ConsumerBusyError, EngineError, NotOwnerError
from engine.model.subscriptions import ConsumerRegistration, Shares, SubscriptionKind


class SessionState(enum.Enum):
    """CONNECTED and DISCONNECTED sessions are members: they have a share."""

    JOINING = "joining"  # the registration is not durable yet
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # the grace timer runs
    GONE = "gone"


_S = SessionState
MOVES: dict[SessionState, frozenset[SessionState]] = {
    _S.JOINING: frozenset((_S.CONNECTED, _S.DISCONNECTED, _S.GONE)),
    _S.CONNECTED: frozenset((_S.DISCONNECTED, _S.GONE)),
    _S.DISCONNECTED: frozenset((_S.CONNECTED, _S.GONE)),
    _S.GONE: frozenset(),
}


class ConsumerSession:
    """Loop thread only. `lock` orders writes of the record; `stored` and `version` are what the record holds."""

    __slots__ = (
        "channel",
        "instance",
        "kind",
        "layout_epoch",
        "lock",
        "name",
        "role",
        "shares",
        "state",
        "stored",
        "timer",
        "version",
    )

    def __init__(self, name: str, kind: SubscriptionKind) -> None:
        self.name = name
        self.kind = kind
        self.state = SessionState.JOINING
        self.instance = ""
        self.role = ""  # its name is taken over by no other one
        self.channel: ConsumerChannel | None = None
        self.timer: asyncio.TimerHandle | None = None
        # The share, as last computed.
        self.layout_epoch = 0
        self.shares: Shares = ()
        # The record.
        self.lock = asyncio.Lock()
        self.stored: ConsumerRegistration | None = None
        self.version: int | None = None

    @classmethod
    def restore(cls, stored: ConsumerRegistration, version: int) -> ConsumerSession:
        """A session of an earlier leader: disconnected, with its share (semantics 14)."""
        session = cls(stored.consumer_name, stored.kind)
        session.instance, session.role = stored.instance, stored.role
        session.layout_epoch, session.shares = stored.layout_epoch, stored.shares
        session.stored, session.version = stored, version
        session.move_to(SessionState.DISCONNECTED)
        return session

    @property
    def member(self) -> bool:
        """Whether it takes part in the assignment."""
        return self.state in (SessionState.CONNECTED, SessionState.DISCONNECTED)

    def move_to(self, state: SessionState) -> None:
        """Change the state, which stops the grace timer; only wait() starts one."""
        if state is not self.state:
            if state not in MOVES[self.state]:
                raise AssertionError(f"consumer session {self.name}: {self.state} -> {state}")
            self.state = state
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def attach(self, instance: str, channel: ConsumerChannel) -> None:
        """Connect a consumer; a consumer that was connected before is told. Raises AuthorizationError: another role's.

        The same instance over another connection is told to register again, if it still listens on the first: this
        request may be a delayed one from a dead connection.
        """
        if channel.role and channel.role != self.role and (self.role or self.channel is not None):
            raise channel.denial(f"the consumer name {self.name!r:.200} is in use by another role")
        self.role = channel.role
        if self.channel is not None and self.instance != instance:
            self.channel.close(ConsumerBusyError(f"another consumer took the name {self.name!r}"))
        elif self.channel is not None and self.channel is not channel:
            self.channel.close(NotOwnerError(f"the consumer {self.name!r} registered over another connection"))
        self.instance, self.channel = instance, channel
        if self.member:
            self.move_to(SessionState.CONNECTED)

    def wait(self, grace_s: float, expired: Callable[[ConsumerSession], None]) -> None:
        """Disconnect, and (re)start the grace timer."""
        self.channel = None
        self.move_to(SessionState.DISCONNECTED)
        self.timer = asyncio.get_running_loop().call_later(grace_s, expired, self)

    def end(self, error: EngineError | None = None) -> None:
        """End the session. With an error, a connected consumer is told."""
        channel, self.channel = self.channel, None
        self.move_to(SessionState.GONE)
        if channel is not None and error is not None:
            channel.close(error)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """The segments of its share, in order."""
        return tuple(share.segment_id for share in self.shares)

    def registration(self, term: int) -> ConsumerRegistration:
        """The content for its record."""
        shared = self.layout_epoch, self.shares
        return ConsumerRegistration(self.name, self.instance, self.kind, term, *shared, self.role)
