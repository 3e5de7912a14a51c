"""`SessionRecords`: the records of consumers' sessions, written by one leadership and fenced by its term.

Two rules keep a replaced leader that does not know of its replacement from doing harm. First, when a record is not as
this leader left it, the record is read, then the leadership confirmed, then the record written by compare-and-set: the
next leader writes after its election, hence after this reading, and the compare-and-set fails. Second, the leadership
is confirmed after the first write of a new session: a record that was written before the next election is seen by the
next leader, a later one is deleted again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.subscription.sessions import ConsumerSession
from engine.errors import NotOwnerError
from engine.metadata.store import ABSENT, ConflictError
from engine.model.names import TopicName
from engine.model.subscriptions import ConsumerRegistration

_ATTEMPTS_MAX = 5


class SessionRecords:
    """Loop thread only; the caller holds the session's lock. All methods raise NotOwnerError."""

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        *,
        term: int,
        confirm: Callable[[], Awaitable[bool]],
        resources: ScalableTopicResources,
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._term = term
        self._confirm = confirm
        self._resources = resources

    async def save(self, session: ConsumerSession) -> None:
        """Write the session to its record, unless it is there already."""
        facts = session.registration(self._term)
        if facts == session.stored:
            return
        created = await self._write(session, facts)
        if not await self._confirm():
            if created:
                await self._take_back(session)
            raise self._not_owner()

    async def delete(self, session: ConsumerSession) -> None:
        known = session.version
        for _ in range(_ATTEMPTS_MAX):
            if known is None and (known := await self._confirmed_version(session)) is None:
                break
            try:
                await self._resources.delete_consumer(self._topic, self._subscription, session.name, known)
                break
            except ConflictError:
                known = None
        else:
            raise self._not_owner()
        session.stored = session.version = None

    async def _write(self, session: ConsumerSession, facts: ConsumerRegistration) -> bool:
        """Returns whether there was no record before."""
        known = session.version
        for _ in range(_ATTEMPTS_MAX):
            expected = ABSENT if known is None else known
            try:
                version = await self._resources.save_consumer(self._topic, self._subscription, facts, expected)
            except ConflictError:
                known = await self._confirmed_version(session)
            else:
                session.stored, session.version = facts, version
                return known is None
        raise self._not_owner()

    async def _confirmed_version(self, session: ConsumerSession) -> int | None:
        """The version of the record, read while this broker led."""
        version = await self._resources.consumer_version(self._topic, self._subscription, session.name)
        if not await self._confirm():
            raise self._not_owner()
        return version

    async def _take_back(self, session: ConsumerSession) -> None:
        version, session.stored, session.version = session.version, None, None
        try:
            if version is not None:
                await self._resources.delete_consumer(self._topic, self._subscription, session.name, version)
        except ConflictError:
            return  # the next leader wrote it, for a consumer that went there

    def _not_owner(self) -> NotOwnerError:
        return NotOwnerError(f"this broker does not lead {self._topic} any more; look the topic up again")
