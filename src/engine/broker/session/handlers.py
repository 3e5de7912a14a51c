"""The handlers of the commands that clients send, and how a connection is accepted with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.session import broker_calls, consumers, handshake, list_requests, producers, short_circuit, topics
from engine.broker.session import transaction_requests as transactions
from engine.broker.session.connection import Connection
from engine.broker.session.guard import guarded
from engine.wire import commands
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.broker.session.ports import Handlers, Host


def accept(host: Host, stream: FrameStream, *, trusted: bool = False) -> Connection:
    """The handler of a new stream. `trusted`: from within this process; it needs no token."""
    return Connection(host, stream, HANDLERS, GUARDED, trusted=trusted)


def _ping(connection: Connection, header: commands.Ping, payload: memoryview) -> None:
    connection.send(commands.Pong())


def _pong(connection: Connection, header: commands.Pong, payload: memoryview) -> None:
    """The frame itself is the sign of life."""


HANDLERS: Handlers = {
    commands.Ping: _ping,
    commands.Pong: _pong,
    commands.Authenticate: handshake.authenticate,
    commands.ScalableTopicLookup: topics.lookup,
    commands.ScalableTopicClose: topics.close_lookup,
    commands.ScalableTopicSubscribe: topics.register,
    commands.ScalableTopicUnsubscribe: topics.unregister,
    commands.SeekSubscription: topics.seek_subscription,
    commands.DeleteSubscription: topics.delete_subscription,
    commands.TopicSchema: topics.topic_schema,
    commands.WatchTopicList: list_requests.watch,
    commands.WatchTopicListClose: list_requests.close,
    commands.GetTopicsOfNamespace: list_requests.get,
    commands.Producer: producers.open_producer,
    commands.Send: producers.send,
    commands.CloseProducer: producers.close_producer,
    commands.Subscribe: consumers.subscribe,
    commands.Flow: consumers.flow,
    commands.Ack: consumers.acknowledge,
    commands.Redeliver: consumers.redeliver,
    commands.CloseConsumer: consumers.close_consumer,
    commands.SegmentOffset: consumers.segment_offset,
    commands.SegmentFiles: short_circuit.segment_files,
    commands.BrokerCall: broker_calls.broker_call,
    commands.NewTxn: transactions.begin,
    commands.EndTxn: transactions.end,
    commands.TxnState: transactions.state,
}

GUARDED: Handlers = guarded(HANDLERS)
