"""`Leadership`: one broker's claim to lead one topic, with its term (PIP-468 "Leader Election and Failover").

Election is the creation of the leader's ephemeral record, on the condition that there is none; its version is the
term, which rises with every election. Fencing has two halves: every write of a leader to the store is conditional on
the version that it read, and every call to a segment's host carries the term, which the host compares with the
largest that it has seen. So a leader that was replaced without noticing it cannot change anything any more.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from engine.control.base.topic_records import LeaderRecord, ScalableTopicResources
from engine.errors import NotOwnerError
from engine.metadata.store import ConflictError, Session
from engine.model.names import TopicName

_ELECTION_ATTEMPTS_MAX = 5


class LeaderState(enum.Enum):
    """The role of this broker for the topic."""

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
    """One broker's role for one topic. Loop thread only."""

    def __init__(
        self,
        topic: TopicName,
        url: str,
        resources: ScalableTopicResources,
        session: Callable[[], Awaitable[Session]],
    ) -> None:
        self.topic = topic
        self.state = LeaderState.FOLLOWING
        self.term = 0  # of the present leadership, or of the last one
        self._url = url
        self._resources = resources
        self._session = session

    @property
    def leading(self) -> bool:
        """Whether this broker leads, as far as is known here."""
        return self.state is LeaderState.LEADING

    def move_to(self, state: LeaderState) -> None:
        if state is not self.state:
            if state not in MOVES[self.state]:
                raise AssertionError(f"leadership of {self.topic}: {self.state} -> {state}")
            self.state = state

    async def acquire(self) -> None:
        """Become leader. Raises NotOwnerError, naming the leader, when another broker leads."""
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
                break  # closed in the meantime; the record ends with the session
            self.term = term
            self.move_to(LeaderState.LEADING)
            return
        raise self.not_owner(None)

    async def confirm(self) -> bool:
        """Whether this term still leads, by the store."""
        leader = await self._resources.load_leader(self.topic)
        return self.leading and leader is not None and leader.term == self.term

    def check(self) -> None:
        """Raise NotOwnerError unless this broker leads."""
        if not self.leading:
            raise self.not_owner(None)

    def not_owner(self, leader: LeaderRecord | None) -> NotOwnerError:
        """The error that makes a client look the topic up again."""
        hint = f"{leader.url} does" if leader else "look the topic up again"
        return NotOwnerError(f"this broker does not lead {self.topic}; {hint}")
