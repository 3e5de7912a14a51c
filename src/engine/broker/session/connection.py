"""`Connection`: the broker's end of one client's connection.

It dispatches frames to the handlers of their commands (natively, see `_native/serve/arrivals.pyx`), sends answers, and
ends what is attached over it when it is lost. Its parts: `pressure` (what is paused, and why), `answers` (requests in
flight), `receipts`, `openings` (ids), `pulse` (signs of life). The handshake is in handshake.py, the handlers are in
handlers.py.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from engine._native.serve.arrivals import Arrivals
from engine.broker.pools.attachments import Attached
from engine.broker.pools.ports import Pause
from engine.broker.rights.principal import ANONYMOUS
from engine.broker.session.answers import Answers
from engine.broker.session.backpressure import Backpressure
from engine.broker.session.handshake import shake_hands
from engine.broker.session.keepalive import Pulse
from engine.broker.session.openings import Openings, in_use
from engine.broker.session.receipts import Receipts
from engine.errors import EngineError, ProtocolError
from engine.wire import commands
from engine.wire.commands import PUBLISH_CREDIT, Header, Part
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.rights.need import Need
    from engine.broker.rights.rights import Followed
    from engine.broker.segment.ports import Attachment
    from engine.broker.segment.producer import Producer
    from engine.broker.session.assignments import Registration
    from engine.broker.session.layout_watch import DagWatchSession
    from engine.broker.session.list_requests import ListRequests
    from engine.broker.session.ports import Handlers, Host
    from engine.broker.session.revocation import Needs
    from engine.broker.session.topic_lists import TopicListSession
    from engine.broker.transactions.sends import ConnectionSends
    from engine.errors import AuthorizationError

log = logging.getLogger(__name__)

PROBE_S = 2.0  # a peer has this long to answer the PING of prove_alive()


class Connection(Arrivals):
    """A FrameHandler, and a Peer of segments. Loop thread only.

    Ids of producers, consumers and sessions are the client's, and unique within its connection.
    """

    __slots__ = ("_guarded", "_list_turn", "_lists", "_sends", "answers", "broker", "caller", "consumers",
                 "counted", "features", "followed", "host", "needs", "openings", "origin", "principal", "producers",
                 "receipts", "registrations", "topic_lists", "trusted", "watches", "whole_entries")  # fmt: skip
    pressure: Backpressure
    pulse: Pulse
    stream: FrameStream

    def __init__(
        self, host: Host, stream: FrameStream, handlers: Handlers, guarded: Callable[[], Handlers], *, trusted: bool
    ) -> None:
        """`guarded`: the handlers for a principal that does not have all rights."""
        memory = host.memory
        pressure = Backpressure(stream, memory.outbound, self._resumed)
        super().__init__(pressure, Pulse(), handlers, memory.intake, memory.outbound)
        self.host = host
        self.stream = stream
        self.caller = stream.peer  # a proxy names another peer later
        self.origin = stream.peer  # the client's address, also behind a proxy that is believed
        self.trusted = trusted  # it comes from within this process
        self.principal = ANONYMOUS  # from the handshake on
        self._guarded = guarded
        self.needs: Needs | None = None  # where the principal does not have all rights
        self.followed: Followed | None = None  # the roles whose grants it needs
        self.broker: str | None = None  # the URL of the broker that the peer has proved to be, see identity.py
        self.features: frozenset[str] = frozenset()  # of both ends
        self.whole_entries = False  # set where another protocol is spoken
        self.counted = False  # among the connections of its role
        self.answers = Answers(self)
        self.receipts = Receipts(self)
        # What is attached over it, by the client's id.
        self.openings = Openings()
        self.producers: Attached[Producer] = Attached(host.memory.attachments)
        self.consumers: Attached[Consumer] = Attached(host.memory.attachments)
        self.watches: dict[int, DagWatchSession] = {}
        self.registrations: dict[int, Registration] = {}
        self.topic_lists: dict[int, TopicListSession] = {}
        # Made at the first use.
        self._lists: ListRequests | None = None
        self._sends: ConnectionSends | None = None
        self._list_turn: asyncio.Lock | None = None

    def restrict(self) -> None:
        """Check each request for the principal's rights from now on."""
        from engine.broker.session.revocation import Needs

        self.handlers = self._guarded()
        self.needs = Needs(self)

    # -- FrameHandler ----------------------------------------------------------------------------------------------

    def shake_hands(self, header: Header) -> None:
        shake_hands(self, header)

    def unexpected(self, header: Header) -> None:
        self.fail(ProtocolError(f"a broker does not accept {header.command.name} after the handshake"))

    def failed(self, header: Header, error: Exception) -> None:
        """A handler has failed with what is no EngineError."""
        log.error("%s from %s failed", header.command.name, self.stream.peer, exc_info=error)
        self.fail(EngineError(f"the broker failed at {header.command.name}: {type(error).__name__}: {error}"))

    def pause_writing(self) -> None:
        self.pressure.pause_writing()

    def resume_writing(self) -> None:
        self.pressure.resume_writing()

    def _resumed(self) -> None:
        """Blocks may be sent again: late answers go first."""
        self.answers.go_on()
        for consumer in list(self.consumers.values()):
            consumer.pump()
        for session in list(self.topic_lists.values()):
            session.pump()

    def connection_lost(self, error: Exception | None) -> None:
        """Detach everything. Messages that were received and not acknowledged stay in the log, outcome unknown."""
        if self.closed:
            return
        self.closed = True
        if self.needs is not None:
            self.needs.close()
        if self.followed is not None:
            self.followed.close()
        self.pressure.close()
        self.answers.go_on()
        self.pulse.wake()
        if isinstance(error, ProtocolError):
            log.warning("connection from %s was closed: %s", self.stream.peer, error, extra={"peer": self.stream.peer})
        self.host.forget(self)
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

    def succeed(self, request_id: int, result: Part | dict[str, Any] | None = None) -> None:
        """Answer a request with SUCCESS."""
        self.send(commands.Success(request_id=request_id, result=result))

    def error(self, request_id: int, error: EngineError, *, session_id: int = 0) -> None:
        """Answer a request with an error. 0: the connection ends with it, or the session that is named."""
        self.send(commands.Error(request_id=request_id, code=error.code, message=str(error), session_id=session_id))

    def fail(self, error: EngineError) -> None:
        """Send an error, and close the connection."""
        if self.closed:
            return
        log.warning("connection from %s is closed: %s", self.stream.peer, error, extra={"peer": self.stream.peer})
        self.error(0, error)
        self.stream.close()

    def denial(self, request: str, reason: str, need: Need | None = None) -> AuthorizationError:
        """The error of a request that is refused for another reason than a right; it is audited: see Audit.denial()."""
        return self.host.rights.audit.denial(self.principal, self.origin, request, reason, need)

    def receipt(self, receipt: commands.SendReceipt) -> None:
        """Queue a SEND_RECEIPT, perhaps in one frame with others."""
        if self.receipts.kept is not None:
            self.receipts.add(receipt)
        elif not self.closed:
            self.stream.send(receipt)

    # -- as segments see it ----------------------------------------------------------------------------------------

    def has_room(self, unsent_max: int) -> bool:
        """Whether a block may be queued although it is not writable."""
        return self.pressure.has_room(unsent_max)

    def forget(self, attachment: Attachment, *, refused: bool = False) -> None:
        """A producer or a consumer has ended. `refused`: by an error, of which the client does not know yet."""
        ident = attachment.ident
        if self.producers.get(ident) is attachment:
            del self.producers[ident]
        elif self.consumers.get(ident) is attachment:
            del self.consumers[ident]
        if refused:
            self.openings.closed.add(ident)

    def wants(self, ident: int) -> bool:
        """Whether the client is connected and has not closed what is being opened under that id."""
        return not self.closed and self.openings.wanted(ident)

    async def prove_alive(self) -> bool:
        """Ping the peer. Without a frame from it within PROBE_S the connection is dropped, and False returned.

        For a peer that stands in the way of another, and may be the dead end of a connection that was replaced.
        """
        if self.closed or self.held:
            return not self.closed
        self.send(commands.Ping())
        if not await self.pulse.frame_within(PROBE_S) and not self.held:
            log.warning("connection from %s is dropped: no answer within %g s", self.stream.peer, PROBE_S)
            self.stream.abort()
            self.connection_lost(None)
        return not self.closed

    @property
    def role(self) -> str:
        """Of its principal; empty where that may do everything."""
        return self.principal.role

    @property
    def takes_credit(self) -> bool:
        """Whether its producers send no more than they are given credit for, where they are given any."""
        return PUBLISH_CREDIT in self.features

    @property
    def sends(self) -> ConnectionSends:
        """The frames that it has sent in open transactions."""
        if self._sends is None:
            from engine.broker.transactions.sends import ConnectionSends

            self._sends = ConnectionSends()
        return self._sends

    # -- as the pools see it ---------------------------------------------------------------------------------------

    def hold(self, reason: Pause) -> bool:
        """Read no frames until every reason is released. Whether this one is new."""
        return self.pressure.hold(reason)

    @property
    def held(self) -> bool:
        """Whether the peer is not read from, so that its silence means nothing."""
        return self.pressure.held

    @property
    def stalled_since(self) -> tuple[float, float]:
        """The loop's time since when it is at one frame, and since when it is connected."""
        return self.pulse.frame_at, self.pulse.since

    # -- requests --------------------------------------------------------------------------------------------------

    def begin_opening(self, ident: int) -> None:
        """Reserve a client's id for what is being opened. Raises InvalidArgumentError when it is in use."""
        self.check_unused(ident)
        self.openings.begin(ident)

    def check_unused(self, ident: int) -> None:
        """Raise InvalidArgumentError when a client's id is in use."""
        if self.is_used(ident):
            raise in_use(ident)

    def is_used(self, ident: int) -> bool:
        """Whether something has a client's id, or is being opened under it."""
        return ident in self.openings or any(ident in owned for owned in self._owned())

    @property
    def attached(self) -> int:
        """How many ids are attached."""
        return sum(map(len, self._owned()))

    def check_attachments(self) -> None:
        """Raise TooManyRequestsError unless one more producer or consumer may be attached."""
        self.host.memory.attachments.check(len(self.producers) + len(self.consumers))

    def start(self, request_id: int, work: Coroutine[Any, Any, Any], over: Callable[[], object] = lambda: None) -> None:
        """Run a request in the background. It answers itself, or returns the dict of its SUCCESS.

        `over` is called once it has ended, also when it never began.
        """
        self.answers.start(request_id, work, over)

    def answer_when(self, request_id: int, done: Awaitable[Any]) -> None:
        """Answer with SUCCESS when `done` is, or with its error."""
        self.answers.answer_when(request_id, done)

    @property
    def lists(self) -> ListRequests:
        """Its requests for topic lists."""
        if self._lists is None:
            from engine.broker.session.list_requests import ListRequests

            self._lists = ListRequests(self)
        return self._lists

    @property
    def list_turn(self) -> asyncio.Lock:
        """Held while a part of a topic list is sent, until the peer has taken it."""
        if self._list_turn is None:
            self._list_turn = asyncio.Lock()
        return self._list_turn
