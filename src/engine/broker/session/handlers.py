"""The handlers of the commands that clients send, and how a connection is accepted with them.

A handler's module, and what it serves with, is loaded with the first frame of a command: an embedded engine that only
sends loads nothing of consumers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.broker.session.connection import Connection
from engine.broker.session.handshake import authenticate
from engine.wire import commands
from engine.wire.commands import Header
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.broker.session.ports import Handler, Handlers, Host


def accept(host: Host, stream: FrameStream, *, trusted: bool = False) -> Connection:
    """The handler of a new stream. `trusted`: from within this process; it needs no token."""
    return Connection(host, stream, HANDLERS, _guarded, trusted=trusted)


def _guarded() -> Handlers:
    """The handlers of a connection whose principal does not have all rights."""
    if not _GUARDED:
        from engine.broker.session.guard import guarded

        _GUARDED.update(guarded(HANDLERS))
    return _GUARDED


def _ping(connection: Connection, header: commands.Ping, payload: memoryview) -> None:
    connection.send(commands.Pong())


def _pong(connection: Connection, header: commands.Pong, payload: memoryview) -> None:
    """The frame itself is the sign of life."""


# Module of this package, and function in it.
PLACES: dict[type[Header], tuple[str, str]] = {
    commands.ScalableTopicLookup: ("topics", "lookup"),
    commands.ScalableTopicClose: ("topics", "close_lookup"),
    commands.ScalableTopicSubscribe: ("topics", "register"),
    commands.ScalableTopicUnsubscribe: ("topics", "unregister"),
    commands.SeekSubscription: ("topics", "seek_subscription"),
    commands.DeleteSubscription: ("topics", "delete_subscription"),
    commands.TopicSchema: ("topics", "topic_schema"),
    commands.WatchTopicList: ("list_requests", "watch"),
    commands.WatchTopicListClose: ("list_requests", "close"),
    commands.GetTopicsOfNamespace: ("list_requests", "get"),
    commands.Producer: ("producers", "open_producer"),
    commands.Send: ("producers", "send"),
    commands.CloseProducer: ("producers", "close_producer"),
    commands.Subscribe: ("consumers", "subscribe"),
    commands.Flow: ("consumers", "flow"),
    commands.Ack: ("consumers", "acknowledge"),
    commands.Redeliver: ("consumers", "redeliver"),
    commands.CloseConsumer: ("consumers", "close_consumer"),
    commands.SegmentOffset: ("consumers", "segment_offset"),
    commands.SegmentFiles: ("short_circuit", "segment_files"),
    commands.BrokerCall: ("broker_calls", "broker_call"),
    commands.NewTxn: ("transaction_requests", "begin"),
    commands.EndTxn: ("transaction_requests", "end"),
    commands.TxnState: ("transaction_requests", "state"),
}


def _first(connection: Connection, header: Any, payload: memoryview) -> None:
    """The first frame of a command: its handler takes its own place in the table."""
    module, name = PLACES[type(header)]
    handle = HANDLERS[type(header)] = getattr(import_module(f"engine.broker.session.{module}"), name)
    if _GUARDED.get(type(header)) is _first:
        _GUARDED[type(header)] = handle
    handle(connection, header, payload)


HANDLERS: dict[type[Header], Handler] = {
    commands.Ping: _ping,
    commands.Pong: _pong,
    commands.Authenticate: authenticate,
    **dict.fromkeys(PLACES, _first),
}

_GUARDED: dict[type[Header], Handler] = {}  # made for the first principal that does not have all rights
