"""Declares the schema by which a topic's values are written or read, and learns the schemas of other writers."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict

from engine.client.base.schema import Schema
from engine.client.net.pool import persist
from engine.client.topic.session import TopicSession
from engine.errors import ConnectError, TimeoutError
from engine.model.schema import SchemaHistory, TopicSchema
from engine.wire import commands


async def declare(session: TopicSession, schema: Schema[Any], *, producer: bool) -> None:
    """Have `schema` checked and recorded; nothing happens for plain bytes.

    Raises SchemaError when it is not compatible with the topic's, NotFoundError, ConnectError, TimeoutError.
    """
    if schema.facts is not None:
        await _ask(session, schema, schema.facts.to_mapping(), producer)


async def learn(session: TopicSession, schema: Schema[Any]) -> None:
    """Learn the schemas that were declared since, with retries. Raises NotFoundError, AlreadyClosedError."""
    backoff = session.pool.retry_delays()
    while True:
        try:
            await _ask(session, schema, None, False)
            return
        except (ConnectError, TimeoutError):
            await asyncio.sleep(backoff.next())


async def learn_to_read(session: TopicSession, schema: Schema[Any]) -> None:
    """Learn the schemas of all that was sent, and record nothing.

    Raises SchemaError when `schema` cannot read one of them, NotFoundError, ConnectError, TimeoutError.
    """
    if schema.facts is not None:
        versions = await _ask(session, schema, None, False)
        SchemaHistory(0, versions).declared(schema.facts, producer=False)


async def recorded(session: TopicSession) -> tuple[TopicSchema, ...]:
    """The schemas of all that was sent, the oldest first. Raises NotFoundError, ConnectError, TimeoutError."""
    return await _ask(session, Schema.bytes(), None, False)


async def _ask(
    session: TopicSession, schema: Schema[Any], declared: dict[str, str] | None, producer: bool
) -> tuple[TopicSchema, ...]:
    pool, timeout = session.pool, session.pool.options.operation_timeout
    request = commands.TopicSchema(topic=str(session.topic), schema=declared, producer=producer)

    async def once() -> tuple[TopicSchema, ...]:
        answer = await pool.ask_any(request)
        return tuple(TopicSchema.of(asdict(version), checked=False) for version in answer.versions)

    versions = await persist(pool, once, timeout, f"declaring the schema of {session.topic}")
    schema.learn(versions)
    return versions
