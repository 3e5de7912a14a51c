"""One client's connection: handshake, dispatch of commands, answers, and the end of everything that lives on it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from engine.broker.pools.attachments import Attached
from engine.broker.session import list_requests, requests, short_circuit
from engine.broker.session import transaction_requests as transactions
from engine.broker.session.in_flight import Answers
from engine.broker.session.keepalive import Pulse
from engine.broker.session.list_requests import ListRequests
from engine.broker.session.receipts import Receipts
from engine.broker.transactions.sends import ConnectionSends
from engine.errors import EngineError, InvalidArgumentError, ProtocolError, UnsupportedError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW
from engine.wire import commands
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, SHORT_CIRCUIT_READS, Header, Part
from engine.wire.stream import FrameStream, Payload, Sent

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.segment.producer import Producer
    from engine.broker.server import Broker
    from engine.broker.session.assignments import Registration
    from engine.broker.session.layout_watch import DagWatchSession
    from engine.broker.session.topic_lists import TopicListSession

log = logging.getLogger(__name__)

PROBE_S = 2.0  # a peer that is asked whether it lives has this long to answer
_FRAMES_PER_NOTE = 16  # received, after which what waits for the peer is counted anew
_ANSWERS_UNSENT_MAX = 4 * CONNECTION_WRITE_HIGH  # a peer that asks and does not read is not listened to above this


class Connection:
    """The broker's end of a connection (a FrameHandler). Loop thread only.

    Ids of producers, consumers and sessions are the client's and unique within its connection.
    """

    __slots__ = ("_abandoned", "_heard", "_held", "_list_turn", "_lists", "_opening", "_paused", "_sends",
                 "_waits_turn", "answers", "broker", "caller", "closed", "closed_ids", "consumers", "features",
                 "frames", "held_back", "noted", "producers", "pulse", "ready", "receipts", "registrations", "stream",
                 "topic_lists", "trusted", "watches", "writable")  # fmt: skip

    def __init__(self, broker: Broker, stream: FrameStream, *, trusted: bool = False) -> None:
        self.broker = broker
        self.stream = stream
        self.caller = stream.peer  # as it came; a proxy says later for whom
        self.trusted = trusted  # it comes from within this process
        self.ready = False  # the handshake is done
        self.features: frozenset[str] = frozenset()  # that both ends have
        self.closed = False
        # Whether consumers may send: neither the stream nor the broker's memory is over its mark.
        self.writable = True
        self.held_back = False  # by the broker's memory
        self._paused = False  # by the stream
        self._waits_turn = False  # there are others who want to send
        self.noted = 0  # what waits for the peer, as far as the broker's memory knows
        self.frames = 0  # received; grows while the peer is alive
        self.pulse = Pulse()
        self._heard: asyncio.Future[None] | None = None  # wakes whoever asks whether the peer is alive
        # What lives on this connection, by the client's id.
        self.producers: Attached[Producer] = Attached(broker.memory.attachments)
        self.consumers: Attached[Consumer] = Attached(broker.memory.attachments)
        self.watches: dict[int, DagWatchSession] = {}
        self.registrations: dict[int, Registration] = {}
        self.topic_lists: dict[int, TopicListSession] = {}
        self.closed_ids: set[int] = set()  # producers this end has closed; what was on its way to them is dropped
        self._opening: set[int] = set()
        self._abandoned: set[int] = set()  # of those, what the client has closed before it was open
        self._held: set[str] = set()  # why frames are not read at the moment
        self.receipts = Receipts(self)
        self.answers = Answers(self)  # to requests that are under way
        # Made when there is something for them.
        self._lists: ListRequests | None = None
        self._sends: ConnectionSends | None = None
        self._list_turn: asyncio.Lock | None = None

    # -- FrameHandler ----------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """Do what one frame asks for."""
        self.frames += 1
        self.broker.memory.intake.frame(self)
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)
        if not self.ready:
            self._shake_hands(header)
            return
        handle = _HANDLERS.get(type(header))
        if handle is None:
            self.fail(ProtocolError(f"{header.command.name} is not for a broker, or not now"))
            return
        try:
            handle(self, header, payload)
        except EngineError as e:
            self.error(getattr(header, "request_id", None) or 0, e)
        except Exception as e:
            log.exception("%s from %s failed", header.command.name, self.stream.peer)
            self.fail(EngineError(f"the broker failed at {header.command.name}: {type(e).__name__}: {e}"))
        if not self.frames % _FRAMES_PER_NOTE:
            self.broker.memory.outbound.note(self)
        if not self.writable and (self.held_back or self.stream.unsent_bytes > _ANSWERS_UNSENT_MAX):
            self.hold("answers")

    def pause_writing(self) -> None:
        """The peer does not read as fast as we write: consumers stop."""
        self._paused, self.writable = True, False
        self.broker.memory.outbound.note(self)

    def resume_writing(self) -> None:
        """Consumers go on, unless the broker's memory is used up, and when it is their turn."""
        self._paused = False
        if self.broker.memory.outbound.crowded:
            self.broker.memory.outbound.queue(self)
        else:
            self._go_on()

    @property
    def takes_answers(self) -> bool:
        """Whether the peer takes what it is sent; of one that is gone, nobody has to wait for that."""
        most = CONNECTION_WRITE_LOW if self.held_back else _ANSWERS_UNSENT_MAX // 2  # more than consumers leave there
        return self.closed or self.stream.unsent_bytes <= most

    def hold_back(self) -> None:
        """The broker holds too much for peers that do not read, and something for this one: the same as if full."""
        self.held_back, self.writable = True, False

    def wait_turn(self) -> bool:
        """Enough is sent in this turn of the loop. Whether it is this that makes it wait."""
        waits, self._waits_turn, self.writable = self._waits_turn, True, False
        return not waits

    def take_turn(self) -> None:
        """Undo wait_turn(), and hold_back() if that is over."""
        self._waits_turn = False
        self._go_on()

    def _go_on(self) -> None:
        if self._paused or self.held_back or self._waits_turn or self.closed:
            return
        self.writable = True
        self.release("answers")
        self.answers.go_on()
        for consumer in list(self.consumers.values()):
            consumer.pump()
        for session in list(self.topic_lists.values()):
            session.pump()

    def connection_lost(self, error: Exception | None) -> None:
        """Detach everything. What was published and not yet answered stays in the log, its outcome unknown."""
        if self.closed:
            return
        self.closed = True
        self.answers.go_on()
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)
        if isinstance(error, ProtocolError):
            log.warning("connection from %s was closed: %s", self.stream.peer, error, extra={"peer": self.stream.peer})
        self.broker.forget(self)
        if self._lists is not None:
            self._lists.connection_lost()
        for one in self._attached():
            one.connection_lost()
        for owned in self._owned():
            owned.clear()

    def _owned(self) -> tuple[dict[int, Any], ...]:
        return self.producers, self.consumers, self.watches, self.registrations, self.topic_lists

    def _attached(self) -> list[Producer | Consumer | DagWatchSession | Registration | TopicListSession]:
        return list(itertools.chain.from_iterable(d.values() for d in self._owned()))

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame; nothing when the connection is gone."""
        if not self.closed:
            self.stream.send(header, payload)
            if payload:
                self.broker.memory.outbound.sent(self, payload)

    @property
    def block_size(self) -> int:
        """The most that a consumer is sent at a time, but for one entry."""
        return self.broker.memory.outbound.block_size

    def succeed(self, request_id: int, result: Part | dict[str, Any] | None = None) -> None:
        """Answer a request with SUCCESS."""
        self.send(commands.Success(request_id=request_id, result=result))

    def error(self, request_id: int, error: EngineError, *, session_id: int = 0) -> None:
        """Answer a request with an error; or (0) say that a session has ended with it, or the connection."""
        self.send(commands.Error(request_id=request_id, code=error.code, message=str(error), session_id=session_id))

    def fail(self, error: EngineError) -> None:
        """Say why, and close the connection."""
        if self.closed:
            return
        log.warning("connection from %s is closed: %s", self.stream.peer, error, extra={"peer": self.stream.peer})
        self.error(0, error)
        self.stream.close()

    # -- holding the peer up ---------------------------------------------------------------------------------------

    def hold(self, reason: str) -> bool:
        """Read nothing from the peer until every reason is released. Whether this one is new."""
        if reason in self._held:
            return False
        if not self._held:
            self.stream.pause_reading()
        self._held.add(reason)
        return True

    def release(self, reason: str) -> None:
        """Undo hold()."""
        if reason in self._held:
            self._held.remove(reason)
            if not self._held:
                self.stream.resume_reading()

    async def prove_alive(self) -> bool:
        """Ping the peer; without a sign of life within PROBE_S the connection is dropped and False returned.

        For a peer that stands in somebody's way, and may be the dead end of a connection that was made anew since.
        """
        if self.closed or self.held:
            return not self.closed
        if self._heard is None or self._heard.done():
            self._heard = asyncio.get_running_loop().create_future()
        self.send(commands.Ping())
        await asyncio.wait([self._heard], timeout=PROBE_S)
        if not self._heard.done() and not self.held:
            log.warning("connection from %s is dropped: no answer within %g s", self.stream.peer, PROBE_S)
            self.stream.abort()
            self.connection_lost(None)
        return not self.closed

    @property
    def held(self) -> bool:
        """Whether the peer is not read from, so that its silence says nothing."""
        return bool(self._held)

    def hold_publishing(self) -> None:
        """The broker's publish memory is used up."""
        self.hold("publishing")

    def release_publishing(self) -> None:
        """There is publish memory again."""
        self.release("publishing")

    # -- requests --------------------------------------------------------------------------------------------------

    def claim(self, ident: int) -> None:
        """Reserve a client's id for what is being opened. Raises InvalidArgumentError when it is in use."""
        self.check_unused(ident)
        self._opening.add(ident)

    def check_unused(self, ident: int) -> None:
        """Raises InvalidArgumentError when a client's id is in use."""
        if ident in self._opening or any(ident in owned for owned in self._owned()):
            raise InvalidArgumentError(f"the id {ident} is in use on this connection; take one that was never used")

    def unclaim(self, ident: int) -> None:
        """The opening has ended, either way."""
        self._opening.discard(ident)
        self._abandoned.discard(ident)

    def abandon(self, ident: int) -> None:
        """The client has closed what may still be opening."""
        if ident in self._opening:
            self._abandoned.add(ident)

    def wants(self, ident: int) -> bool:
        """Whether the client is there and still wants what is being opened."""
        return not self.closed and ident not in self._abandoned

    def start(self, request_id: int, work: Coroutine[Any, Any, Any], over: Callable[[], object] = lambda: None) -> None:
        """Do it in the background and answer: nothing (it answers itself), or SUCCESS with the dict it returns.

        `over` is called once it has ended, also when it never began.
        """
        self.answers.start(request_id, work, over)

    @property
    def lists(self) -> ListRequests:
        """Its requests for topic lists."""
        if self._lists is None:
            self._lists = ListRequests(self)
        return self._lists

    @property
    def sends(self) -> ConnectionSends:
        """What it has sent in transactions that have not ended."""
        if self._sends is None:
            self._sends = ConnectionSends()
        return self._sends

    @property
    def list_turn(self) -> asyncio.Lock:
        """Who holds it may send a part of a topic list; the next one does when the peer has taken that."""
        if self._list_turn is None:
            self._list_turn = asyncio.Lock()
        return self._list_turn

    def answer_when(self, request_id: int, done: Awaitable[Any]) -> None:
        """SUCCESS when `done` is, or its error."""
        self.answers.answer_when(request_id, done)

    # -- handshake -------------------------------------------------------------------------------------------------

    def _shake_hands(self, header: Header) -> None:
        if not isinstance(header, commands.Connect) or header.magic != MAGIC:
            self.fail(
                ProtocolError(f"the first frame is {header.command.name}; CONNECT with the magic {MAGIC!r} is right")
            )
            return
        if (error := self.broker.refusal(self) or _refusal(header)) is not None:
            self.fail(error)
            return
        config, attempts = self.broker.config, self.broker.doors.attempts
        if not self.trusted and (refusal := attempts.refusal(config, header.token, self.caller)):
            self.hold("refusal")
            delay = min(refusal.delay, config.handshake_timeout / 2)
            asyncio.get_running_loop().call_later(delay, self.fail, refusal.error)
            return
        self.ready = True
        self.features = frozenset(header.features) & frozenset(self._features(header))
        if forwarded := header.forwarded:
            self.stream.peer = f"{forwarded!r:.100} over the proxy {self.stream.peer}"
        answer = commands.Connected(
            protocol=min(PROTOCOL_VERSION, header.protocol),
            features=[f for f in FEATURES if f in self.features],
            broker=self.broker.addresses.url_for(self.stream),
            admin=self.broker.addresses.admin_url_for(self.stream),
            keep_alive=config.keep_alive,
            frame_size_max=config.frame_size_max,
        )
        self.send(answer)

    def _features(self, header: commands.Connect) -> Iterator[str]:
        """Those that this end has for this peer."""
        near = getattr(self.stream, "is_near", False) and not header.forwarded
        for feature in FEATURES:
            if feature != SHORT_CIRCUIT_READS or (near and self.broker.config.short_circuit_reads):
                yield feature


def _refusal(header: commands.Connect) -> EngineError | None:
    """Why the peer's side of the handshake cannot be worked with."""
    if header.protocol < 1:
        return UnsupportedError(f"protocol version {header.protocol}; this broker speaks 1 to {PROTOCOL_VERSION}")
    if "scalable-topics" not in header.features:
        return UnsupportedError("the client lacks the feature scalable-topics, without which nothing here can be used")
    return None


def _ping(connection: Connection, header: commands.Ping, payload: memoryview) -> None:
    connection.send(commands.Pong())


def _pong(connection: Connection, header: commands.Pong, payload: memoryview) -> None:
    """Being heard was all."""


_HANDLERS: dict[type[Header], Callable[[Connection, Any, memoryview], None]] = {
    commands.Ping: _ping,
    commands.Pong: _pong,
    commands.ScalableTopicLookup: requests.lookup,
    commands.ScalableTopicClose: requests.close_lookup,
    commands.ScalableTopicSubscribe: requests.register,
    commands.ScalableTopicUnsubscribe: requests.unregister,
    commands.WatchTopicList: list_requests.watch,
    commands.WatchTopicListClose: list_requests.close,
    commands.GetTopicsOfNamespace: list_requests.get,
    commands.Producer: requests.open_producer,
    commands.Send: requests.send,
    commands.CloseProducer: requests.close_producer,
    commands.Subscribe: requests.subscribe,
    commands.TopicSchema: requests.topic_schema,
    commands.Flow: requests.flow,
    commands.Ack: requests.acknowledge,
    commands.Redeliver: requests.redeliver,
    commands.CloseConsumer: requests.close_consumer,
    commands.SegmentOffset: requests.segment_offset,
    commands.SegmentFiles: short_circuit.segment_files,
    commands.BrokerCall: requests.broker_call,
    commands.NewTxn: transactions.begin,
    commands.EndTxn: transactions.end,
    commands.TxnState: transactions.state,
}
