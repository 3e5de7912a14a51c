"""`Registration`: a consumer registered with a topic's controller over a connection, and its assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from engine.errors import EngineError
from engine.model.subscriptions import AssignedSegment, ConsumerAssignment
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


class Registration:
    """One registered consumer (a ConsumerChannel). Loop thread only.

    When the connection closes, the consumer's session stays for the grace period (semantics 13, 14).
    """

    __slots__ = ("_answered", "_connection", "_created_ms", "_ident", "_instance", "_name", "_registered",
                 "_subscription", "_topic", "_unsent", "closed")  # fmt: skip

    def __init__(self, connection: Connection, header: commands.ScalableTopicSubscribe) -> None:
        self._connection = connection
        self._ident: int = header.consumer_id
        self._topic: str = header.topic
        self._subscription: str = header.subscription
        self._name: str = header.consumer_name
        self._instance: str = header.instance
        self._created_ms: int | None = header.created_ms  # of the subscription as the client knows it
        self._registered = False
        self._answered = False
        self._unsent: ConsumerAssignment | None = None  # the newest assignment, if the client does not have it
        self.closed = False

    @property
    def role(self) -> str:
        """Of its connection."""
        return self._connection.role

    def denial(self, reason: str) -> EngineError:
        """The error of a name that another role has; it is audited."""
        from engine.broker.rights.need import Need, on_topic  # an engine without roles does without

        need = Need(0, on_topic(self._topic), self._subscription)
        return self._connection.denial("SCALABLE_TOPIC_SUBSCRIBE", reason, need)

    async def open(self, request_id: int, kind: str, initial_position: str) -> None:
        """Register and answer with the first assignment.

        Raises NotFoundError, SubscriptionNotFoundError, NotOwnerError, InvalidArgumentError.
        """
        service = self._connection.host.service
        assignment = await service.register_consumer(
            self._topic,
            self._subscription,
            self._name,
            instance=self._instance,
            channel=self,
            kind=kind,
            initial_position=initial_position,
            created_ms=self._created_ms,
        )
        self._registered = True
        if not self.closed:
            await self._connection.answers.room()
        if self.closed:
            self._disconnect()
            return
        newest, self._unsent, self._answered = self._unsent or assignment, None, True
        self._send(newest, request_id, assignment.created_ms)

    async def leave(self, instance: str) -> None:
        """Unregister. An instance that is not the current one changes nothing."""
        service = self._connection.host.service
        await service.unregister_consumer(self._topic, self._subscription, self._name, instance=instance)
        self._forget()

    def push_assignment(self, assignment: ConsumerAssignment) -> None:
        """Send a new assignment, when the peer takes answers."""
        if not self.closed:
            self._unsent = assignment
            self._connection.answers.send_update(self)

    def send_update(self) -> None:
        """Send the newest assignment, if the client does not have it."""
        if self._answered and self._unsent is not None and not self.closed:
            newest, self._unsent = self._unsent, None
            self._send(newest, None)

    def close(self, error: EngineError) -> None:
        """The controller ends the registration."""
        if not self.closed:
            closing = commands.CloseConsumer(consumer_id=self._ident, code=error.code, message=str(error))
            self._connection.send(closing)
        self._forget()

    def revoke(self, error: EngineError) -> None:
        """The client may not consume any more: the grace period begins."""
        if not self.closed:
            self._connection.send(commands.CloseConsumer(consumer_id=self._ident, code=error.code, message=str(error)))
            self.connection_lost()
        self._forget()

    def connection_lost(self) -> None:
        """The connection is closed: the grace period begins."""
        if not self.closed:
            self.closed = True
            if self._registered:
                self._disconnect()

    def _disconnect(self) -> None:
        self._connection.host.service.disconnect_consumer(self._topic, self._subscription, self._name, channel=self)

    def _forget(self) -> None:
        self.closed = True
        if self._connection.registrations.get(self._ident) is self:
            del self._connection.registrations[self._ident]

    def _send(self, assignment: ConsumerAssignment, request_id: int | None, created_ms: int | None = None) -> None:
        share = commands.ScalableTopicAssignment(
            request_id=request_id,
            consumer_id=self._ident,
            layout_epoch=assignment.layout_epoch,
            segments=[_assigned(segment) for segment in assignment.segments],
            created_ms=created_ms,
        )
        self._connection.send(share)


def _assigned(segment: AssignedSegment) -> commands.AssignedSegment:
    return commands.AssignedSegment(
        segment_id=segment.segment_id,
        topic=str(segment.name),
        mode=cast(Literal["exclusive", "shared"], str(segment.mode)),
        bucketBoundaries=list(segment.bucket_ends) or None,
    )
