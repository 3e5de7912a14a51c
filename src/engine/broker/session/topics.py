"""Requests about topics: layouts, registrations of consumers, schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from engine.broker.session.acts import on_subscription
from engine.broker.session.assignments import Registration
from engine.broker.session.attaching import attach, check_wanted
from engine.broker.session.layout_watch import DagWatchSession
from engine.model.names import TopicName
from engine.model.schema import TopicSchema
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


def lookup(connection: Connection, header: commands.ScalableTopicLookup, payload: memoryview) -> None:
    """SCALABLE_TOPIC_LOOKUP."""
    session = DagWatchSession(connection, header.session_id, header.topic)
    attach(connection, header.session_id, header.request_id, _lookup(connection, session, header))


async def _lookup(connection: Connection, session: DagWatchSession, header: commands.ScalableTopicLookup) -> None:
    ident = header.session_id
    check_wanted(connection, ident)
    connection.watches[ident] = session
    try:
        await session.open(header.request_id, header.create)
    except BaseException:
        session.close()
        raise
    if connection.closed:
        session.close()


def close_lookup(connection: Connection, header: commands.ScalableTopicClose, payload: memoryview) -> None:
    """SCALABLE_TOPIC_CLOSE. A lookup that is not answered yet ends with an error."""
    connection.openings.abandon(header.session_id)
    session = connection.watches.get(header.session_id)
    if session is not None:
        session.close()


def register(connection: Connection, header: commands.ScalableTopicSubscribe, payload: memoryview) -> None:
    """SCALABLE_TOPIC_SUBSCRIBE."""
    registration = Registration(connection, header)
    attach(connection, header.consumer_id, header.request_id, _register(connection, registration, header))


async def _register(
    connection: Connection, registration: Registration, header: commands.ScalableTopicSubscribe
) -> None:
    ident = header.consumer_id
    connection.registrations[ident] = registration
    try:
        await registration.open(header.request_id, header.kind, header.initial_position)
    except BaseException:
        registration.closed = True
        if connection.registrations.get(ident) is registration:
            del connection.registrations[ident]
        raise


def unregister(connection: Connection, header: commands.ScalableTopicUnsubscribe, payload: memoryview) -> None:
    """SCALABLE_TOPIC_UNSUBSCRIBE."""
    registration = connection.registrations.get(header.consumer_id)
    if registration is not None:
        connection.start(header.request_id, _unregister(registration, header.instance))
    elif header.topic is not None and header.subscription is not None and header.consumer_name is not None:
        named = (header.topic, header.subscription, header.consumer_name)
        connection.start(header.request_id, _leave(connection, named, header.instance))
    else:
        connection.succeed(header.request_id)  # it is closed already


async def _unregister(registration: Registration, instance: str) -> dict[str, Any]:
    await registration.leave(instance)
    return {}


async def _leave(connection: Connection, named: tuple[str, str, str], instance: str) -> dict[str, Any]:
    """End the registration of a consumer that registered over another connection, or at another broker."""
    await connection.host.service.unregister_consumer(*named, instance=instance)
    return {}


def seek_subscription(connection: Connection, header: commands.SeekSubscription, payload: memoryview) -> None:
    """SEEK_SUBSCRIPTION."""
    seeking = connection.host.service.seek_subscription(header.topic, header.subscription, header.when)
    connection.start(header.request_id, _done(_audited(connection, header, seeking)))


def delete_subscription(connection: Connection, header: commands.DeleteSubscription, payload: memoryview) -> None:
    """DELETE_SUBSCRIPTION."""
    deleting = connection.host.service.delete_subscription(header.topic, header.subscription)
    connection.start(header.request_id, _done(_audited(connection, header, deleting)))


def _audited(
    connection: Connection, header: commands.SeekSubscription | commands.DeleteSubscription, work: Awaitable[None]
) -> Coroutine[Any, Any, None]:
    return on_subscription(connection, header.command.name, header.topic, header.subscription, work)


async def _done(work: Coroutine[Any, Any, None]) -> dict[str, Any]:
    await work
    return {}


def topic_schema(connection: Connection, header: commands.TopicSchema, payload: memoryview) -> None:
    """TOPIC_SCHEMA."""
    declared = None if header.schema is None else TopicSchema.of(header.schema, checked=False)
    work = _topic_schema(connection, TopicName.parse(header.topic), declared, header.producer)
    connection.start(header.request_id, work)


async def _topic_schema(
    connection: Connection, topic: TopicName, declared: TopicSchema | None, producer: bool
) -> commands.Schemas:
    schemas = connection.host.service.schemas
    with connection.host.memory.lookups:
        if declared is None:
            history = await schemas.history(topic)
        else:
            history = await schemas.declare(topic, declared, producer=producer)
    said = [version.to_mapping() for version in history.versions]
    return commands.Schemas(versions=[commands.SchemaVersion(**version) for version in said])
