"""`Session`: a client's connection joined to a broker's, until either ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from engine.broker.rights.principal import UNKNOWN
from engine.broker.settings.attempts import Refusal
from engine.errors import AuthenticationError, ConnectError, EngineError, TimeoutError
from engine.limits import (
    FRAME_HEADER_SIZE_MAX,
    FRAME_PREFIX_SIZE,
    FRAME_SIZE_MAX,
    PROXY_STALL_S_MAX,
    TOPIC_LIST_TAKEN_RATE_MIN,
)
from engine.proxy.frames import Piece, Said, error_frame, field_of
from engine.proxy.greeting import Greeting, check_broker, check_client, to_broker, to_client
from engine.proxy.lane import Lane
from engine.proxy.lists import TopicLists
from engine.proxy.side import Side
from engine.wire.commands import Command, Connect
from engine.wire.framing import encode_bytes

if TYPE_CHECKING:
    from engine.proxy.server import Proxy

log = logging.getLogger(__name__)

_LAYOUT_SIZE_MAX = FRAME_HEADER_SIZE_MAX + FRAME_PREFIX_SIZE + 7  # it has no payload
_FULL = "full"  # reason for a pause: the other side's send queue is above the high watermark
_GREETING = "greeting"
_GOODBYE_S_MAX = 2.0  # after one side's end, the other has this long to read what is queued for it
_EXPIRED = "the certificate has expired"


class Session:
    """The SideOwner of both sides.

    The first frame of a side goes to its Greeting; once both are joined, its bytes go into the lane to the other.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.client = Side(self)
        self._broker: Side | None = None
        self._greetings: dict[Side, Greeting] = {self.client: Greeting()}
        self._opening: asyncio.Task[None] | None = None
        self._role: str | None = None  # of the client's certificate
        self._principal = UNKNOWN  # the client, once it is identified
        self._over = False
        self._goodbye: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None  # of the client's certificate
        self._stall: asyncio.TimerHandle | None = None
        # Made when the sides are joined.
        self._inwards: Lane | None = None
        self._outwards: Lane | None = None
        self._lists: TopicLists | None = None

    @property
    def passed(self) -> tuple[int, int]:
        """Bytes forwarded to the broker, and to the client."""
        lanes = self._inwards, self._outwards
        inwards, outwards = (0 if lane is None else lane.bytes for lane in lanes)
        return inwards, outwards

    # -- SideOwner -------------------------------------------------------------------------------------------------

    def opened(self, side: Side) -> None:
        """Start the session when the client connects; a broker's side needs nothing yet."""
        if side is self.client:
            refusal = self._proxy.came(self)
            if refusal is not None:
                self._fail(refusal)
            else:
                self._opening = self._proxy.tasks.spawn(self._open(), f"session of {side.peer}")

    def received(self, side: Side, data: bytes) -> None:
        """Take bytes of one side."""
        try:
            lane = self._inwards if side is self.client else self._outwards
            if lane is None:
                self._greetings[side].received(side, data)
            else:
                lane.feed(data)
        except EngineError as e:
            self._failed_at(side, e)
        except Exception as e:
            log.exception("the session of %s failed", self.client.peer)
            self._failed_at(side, EngineError(f"internal error of the proxy: {type(e).__name__}: {e}"))

    def full(self, side: Side, is_full: bool) -> None:
        """Pause reading from one side while the other's send queue is full."""
        other = self._broker if side is self.client else self.client
        if other is not None and is_full:
            other.hold(_FULL)
        elif other is not None:
            other.release(_FULL)
        if side is self.client:
            self._watch_stall(is_full)
            if self._lists is not None:
                self._lists.full(is_full)

    def _watch_stall(self, is_full: bool) -> None:
        """Limit a pause: while reading from the broker is paused, its end is not noticed."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if is_full and not self._over:
            allowed = PROXY_STALL_S_MAX + self.client.unsent_bytes / TOPIC_LIST_TAKEN_RATE_MIN
            late = TimeoutError(f"a client must read what is queued for it within {allowed:.0f} s, and did not")
            self._stall = asyncio.get_running_loop().call_later(allowed, self._stalled, late)

    def ended(self, side: Side, error: Exception | None) -> None:
        """End the session with one side; what is queued for the other is still sent."""
        if greeting := self._greetings.get(side):
            greeting.fail(ConnectError(f"{side.peer} has closed the connection"))
        if side is self.client or side is self._broker:
            lane = self._inwards if side is self.client else self._outwards
            self._end(orderly=error is None and (lane is None or lane.between))

    # -- the beginning ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            config, client = self._proxy.config, self.client
            said = await self._greetings[client].said(config.handshake_timeout, "the client")
            connect = check_client(said.header)
            clients = self._proxy.clients
            found = clients.identify(config, connect.token, client.transport, client.peer)
            if isinstance(found, Refusal):
                await asyncio.sleep(found.delay)
                raise found.error
            self._role, self._principal = found, clients.principal(config, connect.token, found)
            if found is not None:
                left, expired = clients.seconds_left(client.transport), AuthenticationError(_EXPIRED)
                self._expiry = asyncio.get_running_loop().call_later(left, self._fail, expired)
            broker, answer = await self._find(connect, said.fields)
            self._join(broker, answer, said.rest)
        except EngineError as e:
            self._fail(e)
        finally:
            self._opening = None

    async def _find(self, connect: Connect, fields: dict[str, Any]) -> tuple[Side, Said]:
        """A broker that accepted the client. Raises the last one's error, ConnectError, AuthenticationError."""
        routes, loop = self._proxy.routes, asyncio.get_running_loop()
        error: EngineError = ConnectError("this proxy has no known broker")
        for url in routes.candidates(connect.target, loop.time()):
            side = Side(self)
            try:
                answer = await self._greet(side, url, fields)
            except ConnectError as e:  # try the next one
                side.abort()
                routes.failed(url, loop.time())
                error = e
            except BaseException as e:
                if isinstance(e, AuthenticationError):  # delayed by the broker
                    self._proxy.doors.attempts.failed(self.client.peer, e, guess=connect.token is not None)
                side.abort()
                raise
            else:
                routes.reached(url, check_broker(url, answer.header))
                return side, answer
        raise error

    async def _greet(self, side: Side, url: str, fields: dict[str, Any]) -> Said:
        """What a broker answers, which is CONNECTED."""
        proxy = self._proxy
        self._greetings = {self.client: self._greetings[self.client], side: Greeting()}
        await proxy.dial(url, side)
        side.write(encode_bytes(to_broker(proxy.config, fields, self.client.peer, self._role)))
        answer = await self._greetings[side].said(proxy.config.handshake_timeout, f"the broker {url}")
        check_broker(url, answer.header)
        return answer

    def _join(self, broker: Side, greeting: Said, behind: bytes) -> None:
        if broker.lost:
            raise ConnectError(f"{broker.peer} has closed the connection")
        self._broker, proxy, client = broker, self._proxy, self.client
        size_max = max(FRAME_SIZE_MAX, greeting.fields["frame_size_max"])
        inwards = self._inwards = Lane(broker, self._wants_of_client, self._take_of_client, size_max)
        outwards = self._outwards = Lane(client, self._wants_of_broker, self._take_of_broker, size_max)
        self._lists = TopicLists(proxy.limiter, proxy.tasks, inwards, outwards, broker, self._stalled)
        client.write(encode_bytes(to_client(greeting.fields, proxy.admin_url_for(client))))
        for side, early in ((client, behind), (broker, greeting.rest)):
            if early:
                self.received(side, early)
            side.release(_GREETING)

    # -- frames that are handled -----------------------------------------------------------------------------------

    def _wants_of_client(self, kind: int, size: int) -> bool:
        assert self._lists is not None
        if kind == Command.BROKER_CALL:
            why = "BROKER_CALL is between brokers; a proxy does not forward it"
            raise self._proxy.audit.denial(self._principal, self.client.peer, "BROKER_CALL", why)
        return self._lists.wants_of_client(kind, size)

    def _take_of_client(self, kind: int, frame: Piece) -> None:
        assert self._lists is not None
        self._lists.asked(kind, frame)

    def _wants_of_broker(self, kind: int, size: int) -> bool:
        assert self._lists is not None
        if kind == Command.SCALABLE_TOPIC_UPDATE:
            return size <= _LAYOUT_SIZE_MAX
        return self._lists.wants_of_broker(kind, size)

    def _take_of_broker(self, kind: int, frame: Piece) -> None:
        assert self._lists is not None
        assert self._outwards is not None
        if kind == Command.SCALABLE_TOPIC_UPDATE:
            self._proxy.routes.named_in(field_of(frame, "dag"))
            self._outwards.put(frame)
        else:
            self._lists.answered(kind, frame)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _failed_at(self, side: Side, error: EngineError) -> None:
        """A side violated the protocol."""
        if side is self.client:
            self._fail(error)
        elif side is self._broker:
            log.error("connection to the broker %s is closed: %s", side.peer, error)
            self._end(orderly=False)
        else:
            self._greetings[side].fail(ConnectError(f"{side.peer} violated the protocol: {error}"))
            side.abort()

    def _fail(self, error: EngineError) -> None:
        """Log the error, send it to the client, and end the session."""
        log.warning("connection from %s is closed: %s", self.client.peer, error)
        if self._outwards is None or self._outwards.between:
            self.client.write(error_frame(0, error))
        self._end(orderly=True)

    def _stalled(self, error: EngineError) -> None:
        """Drop a client that does not read: neither its queue nor an error can be sent."""
        log.warning("connection from %s is closed: %s", self.client.peer, error)
        self._end(orderly=False)

    def _end(self, *, orderly: bool) -> None:
        """End both sides. Unless orderly, drop what is queued: a partial frame is useless."""
        if not self._over:
            self._over = True
            self._goodbye = asyncio.get_running_loop().call_later(_GOODBYE_S_MAX, self.abort)
            if self._opening is not None and self._opening is not asyncio.current_task():
                self._opening.cancel()
            self._watch_stall(False)
            if self._expiry is not None:
                self._expiry.cancel()
            if self._lists is not None:
                self._lists.close()
            for lane in (self._inwards, self._outwards):
                if lane is not None:
                    lane.close()
        for side in (self.client, self._broker):
            if side is not None and orderly:
                side.close()
            elif side is not None:
                side.abort()
        if self.client.lost and (self._broker is None or self._broker.lost):
            if self._goodbye is not None:
                self._goodbye.cancel()
            self._proxy.forget(self)

    def close(self) -> None:
        """End the session of a closing proxy: what is queued is still sent."""
        self._end(orderly=True)

    def abort(self) -> None:
        """It has waited long enough."""
        self._end(orderly=False)
