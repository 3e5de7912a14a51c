"""The handlers of the commands that clients send, and how a connection is accepted with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.broker.session import broker_calls, consumers, list_requests, producers, short_circuit, topics
from engine.broker.session import transaction_requests as transactions
from engine.broker.session.connection import Connection
from engine.wire.commands import Command
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.broker.session.ports import Handlers, Host


def accept(host: Host, stream: FrameStream, *, trusted: bool = False) -> Connection:
    """The handler of a new stream. `trusted`: from within this process; it needs no token."""
    return Connection(host, stream, HANDLERS, trusted=trusted)


def _ping(connection: Connection, header: dict[str, Any], payload: memoryview) -> None:
    connection.send(Command.PONG, {})


def _pong(connection: Connection, header: dict[str, Any], payload: memoryview) -> None:
    """The frame itself is the sign of life."""


HANDLERS: Handlers = {
    Command.PING: _ping,
    Command.PONG: _pong,
    Command.SCALABLE_TOPIC_LOOKUP: topics.lookup,
    Command.SCALABLE_TOPIC_CLOSE: topics.close_lookup,
    Command.SCALABLE_TOPIC_SUBSCRIBE: topics.register,
    Command.SCALABLE_TOPIC_UNSUBSCRIBE: topics.unregister,
    Command.TOPIC_SCHEMA: topics.topic_schema,
    Command.WATCH_TOPIC_LIST: list_requests.watch,
    Command.WATCH_TOPIC_LIST_CLOSE: list_requests.close,
    Command.GET_TOPICS_OF_NAMESPACE: list_requests.get,
    Command.PRODUCER: producers.open_producer,
    Command.SEND: producers.send,
    Command.CLOSE_PRODUCER: producers.close_producer,
    Command.SUBSCRIBE: consumers.subscribe,
    Command.FLOW: consumers.flow,
    Command.ACK: consumers.acknowledge,
    Command.REDELIVER: consumers.redeliver,
    Command.CLOSE_CONSUMER: consumers.close_consumer,
    Command.SEGMENT_OFFSET: consumers.segment_offset,
    Command.SEGMENT_FILES: short_circuit.segment_files,
    Command.BROKER_CALL: broker_calls.broker_call,
    Command.NEW_TXN: transactions.begin,
    Command.END_TXN: transactions.end,
    Command.TXN_STATE: transactions.state,
}
