"""`Session`: one connection of a client of Apache Pulsar, in front of a `Connection` as any client has.

    client ── frames ──> Session ── headers of ours ──> Connection ──> segments, subscriptions
           <── frames ──         <── headers of ours ──

The Connection is the one that the broker has made when the socket was accepted. It knows nothing of the other protocol:
it is given headers of ours as if a client of ours had sent them, and what it sends goes through encode(), which makes
frames of it. So rights, limits, access modes, deduplication, keep-alive and backpressure are those of every client, and
are written once.

Nothing is encoded on the way between the two. A request that takes several steps is a coroutine that asks (`ask`) and
is answered through encode(). Ids of producers, consumers and lookups share one space of numbers at a Connection, so
theirs are spread over it (`producer_ident`, `consumer_ident`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from engine._native.pulsar.sends import plain_send
from engine.broker.rights.table import COMMANDS
from engine.errors import ConnectError, EngineError, InvalidArgumentError, ProtocolError, UnsupportedError
from engine.limits import MESSAGE_SIZE_MAX
from engine.pulsar.consumers import Consumers
from engine.pulsar.messages import FIELDS, Command, framed
from engine.pulsar.producers import PlainSend, Producers
from engine.pulsar.requests import Requests
from engine.pulsar.scalable import Scalable
from engine.pulsar.server_errors import number_of
from engine.pulsar.transactions import Transactions
from engine.pulsar.watches import Watches
from engine.wire import commands
from engine.wire.commands import MAGIC, PROTOCOL_VERSION, Header, decode
from engine.wire.packing import PackedHeader

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.pulsar.groups import Groups
    from engine.pulsar.interleaved import Remembered
    from engine.wire.stream import Buffer, FrameStream, Payload, Sent

log = logging.getLogger(__name__)

EMPTY = memoryview(b"")
NO_REQUEST = 2**64 - 1  # the request number of an error that is about the connection
_FRAME_HEAD = 8
_METADATA_ROOM = 128 * 1024  # of a frame, beside the largest message
_FRAME_MAX = MESSAGE_SIZE_MAX + _METADATA_ROOM
_VERSION_MAX = 19  # of the protocol: nothing of 20, which moves a topic to another cluster, is used
_FEATURES = ("topic_watchers", "partitions_without_creation", "scalable_topics", "tc_discovery")
_IDENT_MAX = 2**60
_KINDS = 8  # of ids of a connection
_TOKEN_USED = 0.8  # of the time that a token is valid, after which a newer one is asked for
_REFRESH_S_MIN = 0.2
_REFRESH = b"PulsarAuthRefresh"  # by which clients know what a challenge asks


class Frame(Header, frozen=True, kw_only=True):
    """A frame of theirs, on its way through the Connection."""

    data: bytes


def producer_ident(number: int) -> int:
    """The id of a producer at the Connection. Raises InvalidArgumentError."""
    return ident(number, 0)


def consumer_ident(number: int) -> int:
    """The id of a consumer at the Connection. Raises InvalidArgumentError."""
    return ident(number, 1)


def watch_ident(number: int) -> int:
    """The id of a session that follows a layout, at the Connection. Raises InvalidArgumentError."""
    return ident(number, 3)


def ident(number: int, kind: int) -> int:
    """The id of something of a kind, at the Connection. Raises InvalidArgumentError."""
    if number >= _IDENT_MAX:
        raise InvalidArgumentError(f"an id must be below 2^60, got {number}")
    return number * _KINDS + kind


class Session:
    """A Speaker. Loop thread only."""

    def __init__(self, stream: FrameStream, connection: Connection, groups: Groups, remembered: Remembered) -> None:
        self.stream = stream
        self.connection = connection
        self.host = connection.host
        connection.whole_entries = True  # ids of messages are made of those of entries
        self.client = ""  # its version, as it says
        self._refreshes = False  # it can show a newer token
        self._refresh: asyncio.TimerHandle | None = None
        self.unanswered = 1  # the number of requests of ours whose answer nothing waits for
        self._numbers = itertools.count(2)
        self._asked: dict[int, asyncio.Future[Any]] = {}  # by our request id
        self._failing: dict[int, Callable[[EngineError], None]] = {}  # requests of the client, by our request id
        self.producers = Producers(self, remembered)
        self.consumers = Consumers(self, groups)
        self.scalable = Scalable(self)
        self.watches = Watches(self)
        requests = Requests(self)
        self._handlers: dict[str, Callable[[Any, memoryview], None]] = {
            "connect": self._connect,
            "ping": lambda header, payload: self.native(commands.Ping()),
            "pong": self._pong,
            **self.producers.handlers(),
            **self.consumers.handlers(),
            **self.scalable.handlers(),
            **self.watches.handlers(),
            **Transactions(self).handlers(),
            **requests.handlers(),
        }
        self._encoders: dict[type, Callable[[Any, Payload], bytes]] = {
            commands.Connected: self._connected,
            commands.Ping: lambda header, payload: framed("ping"),
            commands.Pong: lambda header, payload: framed("pong"),
            commands.Error: self._error,
            commands.Success: self._answered,
            commands.ProducerSuccess: self._answered,
            commands.SubscribeSuccess: self._answered,
            commands.ScalableTopicUpdate: self.scalable.updated,
            commands.ScalableTopicAssignment: self.scalable.assigned,
            commands.WatchTopicListUpdate: self.watches.updated,
            commands.SendReceipt: self.producers.receipt,
            commands.SendError: self.producers.refused,
            commands.CloseProducer: self.producers.closed,
            commands.Message: self.consumers.message,
            commands.CloseConsumer: self.consumers.closed,
            commands.ReachedEnd: self.consumers.ended,
        }

    # -- Speaker ---------------------------------------------------------------------------------------------------

    def frame_size(self, head: memoryview) -> int:
        """Raises ProtocolError for one that is too large, or that cannot hold a command."""
        total, command = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
        most = min(_FRAME_MAX, self.host.config.frame_size_max)
        if total > most or not 2 <= command <= total - 4:
            raise ProtocolError(
                f"a frame must have at most {most:,} bytes and hold its command, got {total:,} and {command:,}"
            )
        return 4 + total

    def frame_received(self, frame: memoryview) -> None:
        if self.connection.ready and (send := plain_send(frame)) is not None:
            self._send_received(send)
            return
        size = int.from_bytes(frame[4:_FRAME_HEAD], "big")
        try:
            found = Command.FromString(bytes(frame[_FRAME_HEAD : _FRAME_HEAD + size]))
        except DecodeError as e:
            self.connection.fail(ProtocolError(f"a command of Apache Pulsar's protocol must come here: {e}"))
            return
        name = FIELDS.get(found.type, f"command {found.type}")
        handle = self._handlers.get(name)
        if not self.connection.ready and (name != "connect" or self.client):
            self.connection.fail(ProtocolError(f"the first frame must be CONNECT, and be answered, got {name}"))
            return
        header = getattr(found, name, found)
        try:
            if handle is None:
                raise UnsupportedError(f"this broker does not know {name} of Apache Pulsar's protocol")
            handle(header, frame[_FRAME_HEAD + size :])
        except EngineError as e:
            self._refuse(header, e)
        except Exception as e:
            self._failed(name, e)

    def _send_received(self, send: PlainSend) -> None:
        try:
            self.producers.send_plain(send)
        except EngineError as e:
            self.connection.fail(e)
        except Exception as e:
            self._failed("send", e)

    def _failed(self, name: str, error: Exception) -> None:
        log.exception("%s from %s failed", name, self.stream.peer)
        self.connection.fail(EngineError(f"the broker failed at {name}: {type(error).__name__}: {error}"))

    def _refuse(self, header: Any, error: EngineError) -> None:
        if "request" in type(header).DESCRIPTOR.fields_by_name:
            self.say("error", request=header.request, error=number_of(error), message=str(error))
        else:
            self.connection.fail(error)

    def encode(self, header: Sent, payload: Payload) -> tuple[list[Buffer], int]:
        if isinstance(header, PackedHeader):
            header = decode(header.command, header.packed)
        if isinstance(header, Frame):
            return [header.data], len(header.data)
        encode = self._encoders.get(type(header))
        made = b"" if encode is None else encode(header, payload)
        return [made], len(made)

    def connection_lost(self) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectError("the connection is lost"))
                asked.exception()  # whether anything awaits it still is not known
        self._asked.clear()
        if self._refresh is not None:
            self._refresh.cancel()
        self.producers.connection_lost()
        self.consumers.connection_lost()
        self.watches.connection_lost()

    # -- both sides ------------------------------------------------------------------------------------------------

    def say(self, name: str, /, **fields: Any) -> None:
        """Send a command to the client."""
        self.put(framed(name, **fields))

    def put(self, frames: bytes) -> None:
        """Send whole frames to the client, perhaps none."""
        if frames:
            self.connection.send(Frame(data=frames))

    def native(self, header: Header, payload: memoryview = EMPTY) -> None:
        """Have the Connection receive a header of ours."""
        if not self.connection.closed:
            self.connection.frame_received(header, payload)

    def check(self, header: Header) -> None:
        """Check the rights that a header needs, before what is done on its behalf until native() has it, which checks
        it again. Raises AuthorizationError.
        """
        connection, rule = self.connection, COMMANDS[type(header)]
        if connection.needs is not None and rule is not None:
            self.host.rights.check(connection.principal, rule(header), header.command.name, connection.origin)

    async def ask(self, make: Callable[[int], Header]) -> Any:
        """The answer to a request of ours, made with its id. Raises the error that is the answer; ConnectError."""
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            if self.connection.closed:
                raise ConnectError("the connection is lost")
            self.native(make(number))
            return await asked
        finally:
            self._asked.pop(number, None)

    def lookup_number(self) -> int:
        """An unused id for a lookup at the Connection."""
        return ident(next(self._numbers), 2)

    def start(self, request: int, work: Coroutine[Any, Any, None], fail: Callable[[EngineError], None] | None) -> None:
        """Run a request of the client in the background. It answers itself, but for errors, which go to `fail`."""
        number = next(self._numbers)

        def failed(error: EngineError) -> None:
            self.say("error", request=request, error=number_of(error), message=str(error))

        self._failing[number] = fail or failed
        self.connection.start(number, work, lambda: self._failing.pop(number, None))

    # -- encoders --------------------------------------------------------------------------------------------------

    def _answered(self, header: Any, payload: Payload) -> bytes:
        self.resolve(header.request_id, header)
        return b""

    def resolve(self, request_id: int | None, answer: Any) -> None:
        """A request of ours is answered."""
        asked = self._asked.get(request_id or 0)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def reject(self, request_id: int, error: EngineError) -> None:
        """A request of ours will not be answered."""
        asked = self._asked.get(request_id)
        if asked is not None and not asked.done():
            asked.set_exception(error)

    def _error(self, header: commands.Error, payload: Payload) -> bytes:
        error = EngineError.from_code(header.code, header.message)
        if header.session_id:
            ended = self.watches.ended(header.session_id, error)
            return self.scalable.watch_ended(header.session_id, error) if ended is None else ended
        if header.request_id == 0:
            return framed("error", request=NO_REQUEST, error=number_of(error), message=header.message)
        asked = self._asked.get(header.request_id)
        if asked is not None and not asked.done():
            asked.set_exception(error)
        elif (fail := self._failing.get(header.request_id)) is not None:
            fail(error)
        return b""

    def _pong(self, header: Any, payload: memoryview) -> None:
        self.native(commands.Pong())
        self.producers.ponged()

    # -- the handshake ---------------------------------------------------------------------------------------------

    def _connect(self, header: Any, payload: memoryview) -> None:
        if header.proxy_to or header.original_principal or header.original_auth_data:
            # The clients behind it would have its rights.
            raise UnsupportedError(
                "a broker is asked by clients here, not by Apache Pulsar's proxy, and is none itself"
            )
        self.client = header.client_version[:100] or "?"
        self._protocol = header.protocol
        self._refreshes = header.features.auth_refresh
        token = None
        if header.auth_data:
            if header.auth_method not in ("token", "tls", ""):
                text = f"auth_method_name must be token or tls, got {header.auth_method!r:.50}"
                self.connection.fail(UnsupportedError(text))
                return
            token = header.auth_data.decode("utf-8", "replace") if header.auth_method == "token" else None
        self.native(
            commands.Connect(
                magic=MAGIC,
                protocol=PROTOCOL_VERSION,
                features=["scalable-topics"],
                client=self.client,
                token=token,
            )
        )

    def refresh_later(self, token_left: float | None) -> None:
        """Ask the client for a newer token before its own ends, in so many seconds."""
        if token_left is not None and self._refreshes and not self.connection.closed:
            after = max(token_left * _TOKEN_USED, _REFRESH_S_MIN)
            self._refresh = asyncio.get_running_loop().call_later(after, self._challenge)

    def _challenge(self) -> None:
        asked = {"auth_method": "token", "auth_data": _REFRESH}
        self.say("auth_challenge", server_version="engine", challenge=asked, protocol=self._protocol)

    def _connected(self, header: commands.Connected, payload: Payload) -> bytes:
        self.refresh_later(header.token_left)
        return framed(
            "connected",
            server_version="engine",
            protocol=min(self._protocol, _VERSION_MAX),
            max_message_size=MESSAGE_SIZE_MAX,
            features=dict.fromkeys(_FEATURES, True),
        )
