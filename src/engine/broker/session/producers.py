"""Requests of producers: attach, send, close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.segment.access import applicant
from engine.broker.session.attaching import attach, check_wanted, evict_dead, open_segment
from engine.errors import NotFoundError
from engine.model.access import AccessMode
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


def open_producer(connection: Connection, header: commands.Producer, payload: memoryview) -> None:
    """PRODUCER."""
    attach(connection, header.producer_id, header.request_id, _open_producer(connection, header))


async def _open_producer(connection: Connection, header: commands.Producer) -> None:
    who = applicant(connection, header)
    ident = who.ident
    hosted = await open_segment(connection, header.topic)
    hosted.check_active()
    await evict_dead(connection, lambda: [p.connection for p in hosted.access.rivals(who)])
    if who.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        await hosted.access.turn(who)
    check_wanted(connection, ident)
    connection.check_attachments()
    producer = hosted.access.attach(who)
    connection.producers[ident] = producer
    connection.openings.closed.discard(ident)
    connection.send(producer.success(header.request_id))


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
