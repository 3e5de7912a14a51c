"""`on_subscription`: what a client does to a subscription over the wire, as a line of the audit log."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from engine.broker.rights.need import Need, on_topic
from engine.errors import InvalidArgumentError
from engine.model.rights import Right

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.model.names import TopicName


async def on_subscription(
    connection: Connection, request: str, topic: str | TopicName, subscription: str, work: Awaitable[None]
) -> None:
    """Await the work, and write down that it was done, or its error; the right to it was checked before."""
    if connection.host.config.audit_log is None:
        await work
        return
    error: str | None = None
    try:
        await work
    except BaseException as e:
        error = type(e).__name__
        raise
    finally:
        audit, peer = connection.host.rights.audit, connection.origin
        need = Need(Right.CONSUME, _resource(topic), subscription)
        audit.note_need(connection.principal, peer, request, need, allowed=True, error=error)


def _resource(topic: str | TopicName) -> str:
    try:
        return on_topic(topic)
    except InvalidArgumentError:
        return str(topic)  # the error of the work
