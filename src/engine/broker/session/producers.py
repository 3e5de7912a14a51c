"""Requests of producers: attach, send, close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.segment.access import applicant
from engine.broker.session.attaching import attach, check_wanted, evict_dead, open_segment
from engine.errors import AuthorizationError, NotFoundError
from engine.model.access import AccessMode
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection


def open_producer(connection: Connection, header: commands.Producer, payload: memoryview) -> None:
    """PRODUCER."""
    attach(connection, header.producer_id, header.request_id, _open_producer(connection, header))


async def _open_producer(connection: Connection, header: commands.Producer) -> None:
    who = applicant(connection, header)
    ident = who.ident
    hosted = await open_segment(connection, header.topic)
    hosted.check_active()
    _check_name(connection, hosted, who.name)
    await evict_dead(connection, lambda: [p.connection for p in hosted.access.rivals(who)])
    if who.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        await hosted.access.turn(who)
        _check_name(connection, hosted, who.name)
    hosted.encrypted_only = await connection.host.service.requires_encryption(hosted.name.topic)
    check_wanted(connection, ident)
    connection.check_attachments()
    producer = hosted.access.attach(who)
    connection.producers[ident] = producer
    connection.openings.closed.discard(ident)
    connection.send(producer.success(header.request_id))


def _check_name(connection: Connection, hosted: HostedSegment, name: str) -> None:
    """A role does not take over the name of a producer that another one has attached: it would fence that one, and
    what that one sends again would count as sent.
    """
    holder = hosted.access.producers.get(name)
    if connection.needs is not None and holder is not None and holder.connection.role != connection.role:
        raise AuthorizationError(f"the producer name {name!r:.200} is in use by another role")


def send(connection: Connection, header: commands.Send, payload: memoryview) -> None:
    """SEND."""
    ident = header.producer_id
    if (producer := connection.producers.get(ident)) is not None:
        producer.send(header.entries, payload, header.transaction, header.attempt)
        return
    connection.sends.dropped(header.transaction)
    if ident not in connection.openings.closed:
        unknown = NotFoundError(f"no producer {ident} is attached on this connection")
        refusal = commands.SendError(producer_id=ident, sequence=0, code=unknown.code, message=str(unknown))
        connection.send(refusal)


def close_producer(connection: Connection, header: commands.CloseProducer, payload: memoryview) -> None:
    """CLOSE_PRODUCER. Entries that are durable by then are still acknowledged."""
    if (producer := connection.producers.get(header.producer_id)) is not None:
        producer.close()
    connection.openings.abandon(header.producer_id)
    connection.openings.closed.discard(header.producer_id)
    if header.request_id:
        connection.succeed(header.request_id)
