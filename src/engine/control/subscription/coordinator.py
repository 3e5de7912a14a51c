"""`SubscriptionCoordinator`: assigns the segments of one subscription to its consumers (PIP-468).

It belongs to one leadership of the topic and ends with it. A consumer becomes a member when its registration is
durable. Shares follow from members, layout and drained segments alone; they are pushed when they change, and written
behind: the next leader needs the members, and can compute the shares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from engine.aio.bag import Bag
from engine.aio.tasks import Supervisor
from engine.control.base.ports import ConsumerChannel, SegmentHost
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.policy.assignment import assign
from engine.control.subscription.draining import Draining
from engine.control.subscription.session_records import SessionRecords
from engine.control.subscription.sessions import ConsumerSession, SessionState
from engine.errors import ConsumerBusyError, EngineError, NotOwnerError
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.subscriptions import (
    AssignedSegment,
    ConsumerAssignment,
    ConsumerRegistration,
    DeliveryMode,
    Share,
    SubscriptionKind,
)

log = logging.getLogger(__name__)


class SubscriptionCoordinator:
    """Loop thread only. `confirm`: whether the leadership still holds, by the store."""

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        kind: SubscriptionKind,
        layout: SegmentLayout,
        *,
        term: int,
        confirm: Callable[[], Awaitable[bool]],
        resources: ScalableTopicResources,
        host: SegmentHost,
        grace_s: float,
        share_sealed: bool = True,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self._layout = layout
        self._records = SessionRecords(topic, subscription, term=term, confirm=confirm, resources=resources)
        self._grace_s = grace_s
        self._share_sealed = share_sealed
        self._sessions: dict[str, ConsumerSession] = {}
        self._closed: EngineError | None = None
        self._tasks = Supervisor(f"subscription {subscription} of {topic}")
        self._dirty: Bag[ConsumerSession] = Bag()  # their shares changed and are not written yet
        self._flushing = False
        self._draining: Draining | None = None  # only for stream subscriptions, which are gated by it (semantics 10)
        if kind is SubscriptionKind.STREAM:
            self._draining = Draining(topic, subscription, layout, host, self._rebalance)

    # Members.

    async def prepare(self) -> None:
        """Ask the owners of sealed segments which are drained, as far as they answer now."""
        if self._draining is not None:
            await self._draining.ask()

    def restore(self, registrations: Iterable[tuple[ConsumerRegistration, int]]) -> None:
        """Take over the sessions of an earlier leader, each with a new grace period (semantics 14)."""
        for stored, version in registrations:
            session = ConsumerSession.restore(stored, version)
            self._sessions[session.name] = session
            session.wait(self._grace_s, self._expired)
        self._rebalance()

    async def register(self, name: str, instance: str, channel: ConsumerChannel) -> ConsumerAssignment:
        """Add a consumer, or resume its session, and return its share. The registration is durable on return.

        A newer consumer takes over a name. Raises ConsumerBusyError when that happens to this one in the meantime,
        NotOwnerError when the leadership is lost.
        """
        self._check_open()
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = ConsumerSession(name, self.kind)
        session.attach(instance, channel)
        try:
            await self.prepare()
            await self._persist(session, instance)
        except BaseException:
            self._register_failed(session, instance)
            raise
        self._check_open()
        if session.instance != instance or session.state is SessionState.GONE:
            raise ConsumerBusyError(f"another consumer took the name {name!r}, or it left")
        self._admit(session)
        return self._assignment(session)

    def _register_failed(self, session: ConsumerSession, instance: str) -> None:
        if session.instance != instance or session.state is SessionState.GONE:
            return
        session.channel = None
        if session.member:
            session.wait(self._grace_s, self._expired)
        else:
            self._tasks.spawn(self._abandon(session), f"undoing {session.name}")

    async def _abandon(self, session: ConsumerSession) -> None:
        """Undo a first registration that failed or was cancelled: delete its record, unless it was tried again."""

        def still() -> bool:
            return session.state is SessionState.JOINING and session.channel is None

        try:
            await self._forget(session, still)
        except Exception as e:
            log.warning("%s: the record of consumer %s may remain: %s", self.topic, session.name, e)
            if still():
                self._drop(session)

    def _admit(self, session: ConsumerSession) -> None:
        joined = not session.member
        if session.channel is None:
            session.wait(self._grace_s, self._expired)
        else:
            session.move_to(SessionState.CONNECTED)
        if joined:
            self._rebalance(answered=session)

    def disconnect(self, name: str, channel: ConsumerChannel) -> None:
        """The consumer's connection was lost: it keeps its share for the grace period. A stale channel is ignored."""
        session = self._sessions.get(name)
        if session is None or session.channel is not channel:
            return
        session.channel = None
        if session.state is SessionState.CONNECTED:
            session.wait(self._grace_s, self._expired)

    async def leave(self, name: str, instance: str) -> bool:
        """The consumer left: its share is reassigned at once. False for a stale instance (semantics 13)."""
        session = self._sessions.get(name)
        if session is None or session.instance != instance:
            return False
        return await self._forget(session, lambda: session.instance == instance)

    def _expired(self, session: ConsumerSession) -> None:
        session.timer = None
        self._tasks.spawn(self._expire(session), f"expiry of {session.name}")

    async def _expire(self, session: ConsumerSession) -> None:
        try:
            await self._forget(session, lambda: session.state is SessionState.DISCONNECTED and session.timer is None)
        except NotOwnerError:
            log.info("%s: this broker leads no more; session %s is left to the next leader", self.topic, session.name)
        except Exception as e:
            log.warning("%s: session %s could not be ended, retrying: %s", self.topic, session.name, e)
            if session.state is SessionState.DISCONNECTED and self._closed is None:
                session.wait(self._grace_s, self._expired)

    async def _forget(self, session: ConsumerSession, still: Callable[[], bool]) -> bool:
        """Delete the record, then the session, unless `still` turns false: the consumer came back."""
        async with session.lock:
            if not still() or self._sessions.get(session.name) is not session:
                return False
            await self._records.delete(session)
            if not still():
                return False
            self._drop(session)
        self._rebalance()
        return True

    def _drop(self, session: ConsumerSession) -> None:
        session.end()
        self._dirty.discard(session)
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    # Records.

    async def _persist(self, session: ConsumerSession, instance: str | None = None) -> None:
        """Write the session to its record, unless a newer instance is being written or the session has ended."""
        async with session.lock:
            stale = instance is not None and session.instance != instance
            if not stale and session.state is not SessionState.GONE:
                await self._records.save(session)

    def _write_behind(self, sessions: Iterable[ConsumerSession]) -> None:
        self._dirty.update(sessions)
        if self._dirty and not self._flushing and self._tasks.spawn(self._flush(), "shares") is not None:
            self._flushing = True

    async def _flush(self) -> None:
        try:
            while self._dirty:
                batch, self._dirty = self._dirty, Bag()
                results = await asyncio.gather(*(self._persist(s) for s in batch), return_exceptions=True)
                for error in results:
                    if error is not None:
                        log.warning("%s: a consumer's share could not be written: %s", self.topic, error)
        finally:
            self._flushing = False

    # Shares.

    def layout_changed(self, layout: SegmentLayout) -> None:
        """Reassign by the newest layout. An older one is ignored (semantics 37)."""
        if self._closed is None and layout.epoch > self._layout.epoch:
            self._layout = layout
            if self._draining is not None:
                self._draining.follow(layout)
            self._rebalance()

    def cursors_move(self) -> None:
        """A seek back begins: take children away before their cursors move; they would be read before their parents."""
        if self._draining is not None:
            self._draining.hold()
            self._rebalance()

    def cursors_moved(self) -> None:
        """A seek may have given sealed segments a backlog again: ask their owners anew."""
        if self._draining is not None:
            self._draining.again()
            self._rebalance()

    def _rebalance(self, answered: ConsumerSession | None = None) -> None:
        """Compute all shares; push those that changed, losers first. `answered` gets its own as an answer."""
        members = {s.name: s for s in self._sessions.values() if s.member}
        drained = frozenset[int]() if self._draining is None else self._draining.drained
        found = assign(self._layout, self.kind, drained, members, share_sealed=self._share_sealed)
        changed = [(members[name], shares) for name, shares in found.items() if shares != members[name].shares]
        changed.sort(key=lambda item: set(item[0].shares) <= set(item[1]))
        for session, shares in changed:
            session.shares, session.layout_epoch = shares, self._layout.epoch
            if session.channel is not None and session is not answered:
                session.channel.push_assignment(self._assignment(session))
        self._write_behind(session for session, _ in changed)

    def _assignment(self, session: ConsumerSession) -> ConsumerAssignment:
        return ConsumerAssignment(self._layout.epoch, tuple(self._assigned(share) for share in session.shares))

    def _assigned(self, share: Share) -> AssignedSegment:
        info = self._layout.segments[share.segment_id]
        ends = info.bucket_ends if share.mode is DeliveryMode.SHARED else ()
        return AssignedSegment(self.topic.segment(info.hash_range, info.segment_id), share.mode, ends)

    # Its end, and what it looks like.

    def end(self, error: EngineError) -> None:
        """End all sessions: consumers get `error`; their registrations stay. Idempotent."""
        if self._closed is not None:
            return
        self._closed = error
        if self._draining is not None:
            self._draining.close()
        for session in list(self._sessions.values()):
            session.end(error)

    async def settle(self) -> None:
        """After end(): wait for the last writes to the store."""
        await self._tasks.close()
        for session in list(self._sessions.values()):
            async with session.lock:
                pass

    async def written(self) -> None:
        """Wait until the present shares and pending expiries are in the store."""
        await self._tasks.drain()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    @property
    def idle(self) -> bool:
        """Whether it has no sessions, so that dropping it loses nothing."""
        return not self._sessions

    @property
    def consumers(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        """{consumer name: (connected, segment ids)} of all members."""
        return {s.name: (s.state is SessionState.CONNECTED, s.segment_ids) for s in self._sessions.values() if s.member}
