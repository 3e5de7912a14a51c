"""`Leadership`: one broker's claim to lead one topic, with its term (PIP-468 "Leader Election and Failover")."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from engine.control.base.topic_records import LeaderRecord, ScalableTopicResources
from engine.errors import NotOwnerError
from engine.metadata.store import ConflictError, Session
from engine.model.names import TopicName

_ELECTION_ATTEMPTS_MAX = 5


class LeaderState(enum.Enum):
    """What this broker is to the topic."""

    FOLLOWING = "following"
    LEADING = "leading"
    CLOSED = "closed"


_L = LeaderState
MOVES: dict[LeaderState, frozenset[LeaderState]] = {
    _L.FOLLOWING: frozenset((_L.LEADING, _L.CLOSED)),
    _L.LEADING: frozenset((_L.FOLLOWING, _L.CLOSED)),
    _L.CLOSED: frozenset(),
}


class Leadership:
    """Loop thread only. The term is the version of the leader's record: whatever an older term writes is refused."""

    def __init__(
        self,
        topic: TopicName,
        url: str,
        resources: ScalableTopicResources,
        session: Callable[[], Awaitable[Session]],
    ) -> None:
        self.topic = topic
        self.state = LeaderState.FOLLOWING
        self.term = 0  # of the present leadership, or the last
        self._url = url
        self._resources = resources
        self._session = session

    @property
    def leading(self) -> bool:
        """Whether this broker leads, as far as it knows."""
        return self.state is LeaderState.LEADING

    def move_to(self, state: LeaderState) -> None:
        """Change the state."""
        if state is not self.state:
            if state not in MOVES[self.state]:
                raise AssertionError(f"leadership of {self.topic}: {self.state} -> {state}")
            self.state = state

    async def acquire(self) -> None:
        """Lead the topic. Raises NotOwnerError naming who does, when another broker does."""
        session = await self._session()
        for _ in range(_ELECTION_ATTEMPTS_MAX):
            try:
                term = await self._resources.elect(self.topic, self._url, session)
            except ConflictError:
                leader = await self._resources.load_leader(self.topic)
                if leader is None:
                    continue  # it resigned in between
                if leader.session != session.id:
                    raise self.not_owner(leader) from None
                term = leader.term
            if self.state is LeaderState.CLOSED:
                break  # closed meanwhile; the record ends with the session
            self.term = term
            self.move_to(LeaderState.LEADING)
            return
        raise self.not_owner(None)

    async def confirm(self) -> bool:
        """Whether the store says that this term still leads."""
        leader = await self._resources.load_leader(self.topic)
        return self.leading and leader is not None and leader.term == self.term

    def check(self) -> None:
        """Raise NotOwnerError unless this broker leads."""
        if not self.leading:
            raise self.not_owner(None)

    def not_owner(self, leader: LeaderRecord | None) -> NotOwnerError:
        """The error that sends a client to look again."""
        who = f"{leader.url} does" if leader else "look the topic up again"
        return NotOwnerError(f"this broker does not lead {self.topic}; {who}")
