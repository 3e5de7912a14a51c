"""One multiplexed connection to one broker: handshake, requests and their answers, keep-alive.

A session on it (see link.py) registers under an id that is unique within the connection, gets the frames that carry
this id, and is told when the connection is lost. The pool makes the next connection; each session opens itself again.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from msgspec.structs import replace

from engine._native.wire.sessions import Sessions
from engine.client.net.deadlines import Deadlines
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    EngineError,
    ProtocolError,
    TimeoutError,
    UnsupportedError,
    WrongPeerError,
)
from engine.limits import HANDSHAKE_S_MAX, KEEP_ALIVE_S
from engine.wire import commands
from engine.wire.commands import FEATURES, HEADERS, MAGIC, PROTOCOL_VERSION, Answer, Answerable, Header, answer_to
from engine.wire.stream import FrameStream, Payload

log = logging.getLogger(__name__)

_NOTHING = memoryview(b"")

# What the broker says on its own account, each to one session: the field with its id, and that with further headers.
_ADDRESSED: dict[type, tuple[str, str | None]] = {
    commands.SendReceipt: ("producer_id", "more"),
    commands.SendError: ("producer_id", None),
    commands.PublishCredit: ("producer_id", None),
    commands.Message: ("consumer_id", None),
    commands.ReachedEnd: ("consumer_id", None),
}
# Likewise; these may also answer a request.
_ANSWERING: dict[type[Header], Callable[[Any], int]] = {
    commands.CloseProducer: attrgetter("producer_id"),
    commands.CloseConsumer: attrgetter("consumer_id"),
    commands.ScalableTopicAssignment: attrgetter("consumer_id"),
    commands.ScalableTopicUpdate: attrgetter("session_id"),
    commands.WatchTopicListUpdate: attrgetter("session_id"),
}
_TOKEN_USED = 0.8  # of the time that a token is valid, after which it is renewed
_RENEWAL_S_MIN = 0.5
_ANSWERS = frozenset(kind for kind in HEADERS.values() if "request_id" in kind.__struct_fields__)


class Waiter(Protocol):
    """What stands for a future where a request's answer is received: its methods are called in that step."""

    def done(self) -> bool:
        """Whether an answer is of no use any more."""

    def set_result(self, answer: Any, /) -> None:
        """The answer."""

    def set_exception(self, error: Any, /) -> None:
        """The broker's error, or ConnectError."""

    def exception(self) -> Any:
        """Called when the connection is lost, so that a future that nothing awaits is not logged."""


class Attached(Protocol):
    """A session on a connection. All methods run on the loop and must neither block nor raise."""

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A frame with its id. Answers to its own requests arrive here as well when they carry the id."""

    def resume_writing(self) -> None:
        """The connection takes data again after it had too much unsent."""

    def connection_lost(self, error: EngineError) -> None:
        """The connection is lost, and with it everything the broker kept for this id."""


class Connection(Sessions):
    """A FrameHandler: the client's end. Made by `Connection.open`. Loop thread only."""

    def __init__(self, url: str, stream: FrameStream) -> None:
        super().__init__(_ADDRESSED)
        self.url = url
        self.stream = stream
        self.lost: EngineError | None = None
        self.writable = True
        # From CONNECTED; fixed after the handshake.
        self.broker_url = url
        self.admin_url: str | None = None
        self.features: frozenset[str] = frozenset()
        self.proxied = False  # over a proxy, through which every other broker is reached as well

        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()  # done when it is lost
        self._handshake: asyncio.Future[commands.Connected] = self._loop.create_future()
        self._requests: dict[int, tuple[Answerable[Any], Waiter]] = {}
        self._deadlines = Deadlines[int](self._missed)  # of requests that have one
        self._last_id = 0
        self._silent = 0
        self._keep_alive_s = KEEP_ALIVE_S
        self._due = 0.0  # when the keep-alive timer is due, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._token_left: float | None = None  # seconds, of the token in use
        self._token_now: Callable[[], str | None] | None = None
        self._renewal: asyncio.TimerHandle | None = None

    # -- opening and closing ---------------------------------------------------------------------------------

    async def handshake(self, token: str | None, target: str | None = None) -> None:
        """Send CONNECT, wait for CONNECTED. `target`: the broker behind the proxy, when a proxy is dialled.

        Raises ConnectError, AuthenticationError, UnsupportedError, ProtocolError.
        """
        hello = commands.Connect(
            magic=MAGIC,
            protocol=PROTOCOL_VERSION,
            features=list(FEATURES),
            client="engine-python",
            token=token,
            target=target,
        )
        self.stream.send(hello)
        try:
            async with asyncio.timeout(HANDSHAKE_S_MAX):
                answer = await self._handshake
        except builtins.TimeoutError as e:
            self.stream.abort()
            raise ConnectError(f"{self.named} did not answer the handshake within {HANDSHAKE_S_MAX:g} s") from e
        self._connected(answer)

    def _connected(self, answer: commands.Connected) -> None:
        self.features = frozenset(answer.features) & frozenset(FEATURES)
        if "scalable-topics" not in self.features:
            self.stream.close()
            raise UnsupportedError(f"the broker at {self.url} lacks the feature scalable-topics")
        self.broker_url = answer.broker or self.url
        self.admin_url = answer.admin
        self.proxied = bool(answer.proxied)
        self._token_left = answer.token_left
        self._keep_alive_s = float(answer.keep_alive)
        if self._keep_alive_s > 0:
            self._ping_later()

    def renew_with(self, token_now: Callable[[], str | None] | None) -> None:
        """Show the broker a new token each time before the one in use expires."""
        self._token_now = token_now
        self._renew_later()

    def _renew_later(self) -> None:
        if self._token_now is not None and self._token_left is not None and self.lost is None:
            self._renewal = self._loop.call_later(max(self._token_left * _TOKEN_USED, _RENEWAL_S_MIN), self._renew)

    def _renew(self) -> None:
        assert self._token_now is not None
        try:
            token = self._token_now()
        except Exception:
            log.exception("the token for %s could not be renewed; the connection ends with it", self.url)
            return
        if token is not None:
            request = commands.Authenticate(token=token)
            self.start_request(request, timeout_s=HANDSHAKE_S_MAX).add_done_callback(self._renewed)

    def _renewed(self, done: asyncio.Future[commands.Authenticated]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.warning("%s does not take the renewed token: %s", self.url, error)
            return
        self._token_left = done.result().token_left
        self._renew_later()

    @property
    def named(self) -> str:
        """The broker, in texts: with its process where that is known, which is so over a Unix socket."""
        return self.stream.peer if self.stream.peer.startswith(self.url) else self.url

    @property
    def is_near(self) -> bool:
        """Whether the broker is on this machine, as far as this end can tell."""
        return not self.proxied and self.stream.is_near

    def fail(self, error: ProtocolError) -> None:
        """The peer broke the protocol: drop the connection; every session on it opens again."""
        self.fault = self.fault or error
        self.stream.abort()

    def close(self) -> None:
        """Send what is queued, then end. Idempotent."""
        self._closing = True
        if self.lost is None:
            self.stream.close()

    # -- requests --------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """An id that is unique on this connection."""
        self._last_id += 1
        return self._last_id

    def attach(self, ident: int, attached: Attached) -> None:
        """From now on `attached` gets the frames for `ident`."""
        self.attached[ident] = attached

    def detach(self, ident: int) -> None:
        """Frames for `ident` are dropped from now on."""
        self.attached.pop(ident, None)

    def start_request(
        self, request: Answerable[Answer], payload: Payload = b"", *, timeout_s: float | None = None
    ) -> asyncio.Future[Answer]:
        """Send a request; the future ends with its answer, the broker's error, or ConnectError.

        `timeout_s`: without an answer by then it ends with TimeoutError, also when it is not awaited any more.
        """
        return self._start_request(request, payload, timeout_s)[1]

    def ask(self, request: Answerable[Any], waiter: Waiter) -> None:
        """Send a request; `waiter` gets its answer, the broker's error, or ConnectError."""
        if self.lost is not None:
            waiter.set_exception(self.lost)
            return
        request_id = self.next_id()
        request = replace(request, request_id=request_id)
        self._requests[request_id] = request, waiter
        self.stream.send(request)

    def _start_request(
        self, request: Answerable[Answer], payload: Payload, timeout_s: float | None
    ) -> tuple[int, asyncio.Future[Answer]]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost)
            return 0, future
        request_id = self.next_id()
        request = replace(request, request_id=request_id)
        self._requests[request_id] = request, future
        if timeout_s is not None:
            self._deadlines.add(request_id, self._loop.time() + timeout_s)
        self.stream.send(request, payload)
        return request_id, future

    def _missed(self, request_id: int) -> None:
        """The deadline of a request has passed."""
        _, future = self._requests.pop(request_id, (None, None))
        if future is not None and not future.done():
            future.set_exception(TimeoutError(f"{self.named} did not answer in time"))

    async def request(self, request: Answerable[Answer], timeout: float | None) -> Answer:
        """Its answer. Raises the broker's error, ConnectError, TimeoutError after `timeout` seconds."""
        request_id, future = self._start_request(request, b"", None)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except builtins.TimeoutError as e:
            if isinstance(e, TimeoutError):
                raise  # the broker's own
            raise TimeoutError(f"{self.named} did not answer {request.command.name} within {timeout:g} s") from e
        finally:
            self._requests.pop(request_id, None)

    # -- FrameHandler ----------------------------------------------------------------------------------------

    def other_received(self, header: Header, payload: memoryview) -> None:
        """See Sessions: pass an answer to its request, and do what is said of the connection."""
        kind = type(header)
        request_id: int | None = header.request_id if kind in _ANSWERS else None  # type: ignore[attr-defined]
        request, future = self._requests.get(request_id or 0, (None, None))
        answer = None if request is None or kind is commands.Error else answer_to(request, header)
        addressee = _ANSWERING.get(kind)
        if addressee is not None and (attached := self.attached.get(addressee(header))) is not None:
            attached.frame_received(header, payload)
        if request_id:
            self._answered(header, answer, request_id, future)
        elif addressee is None:
            self._special(header)

    def _answered(self, header: Header, answer: Any, request_id: int, future: Waiter | None) -> None:
        self._requests.pop(request_id, None)
        self._deadlines.discard(request_id)
        if future is None or future.done():
            return
        if isinstance(header, commands.Error):
            future.set_exception(EngineError.from_code(header.code, header.message))
        else:
            future.set_result(answer)

    def _special(self, header: Header) -> None:
        if isinstance(header, commands.Ping):
            self.stream.send(commands.Pong())
        elif isinstance(header, commands.Connected):
            if not self._handshake.done():
                self._handshake.set_result(header)
        elif isinstance(header, commands.Error):
            self._error_received(header)

    def _error_received(self, header: commands.Error) -> None:
        """An error that answers no request: a refused handshake, or the end of a layout session."""
        error = EngineError.from_code(header.code, header.message)
        attached = self.attached.get(header.session_id)
        if attached is not None:
            attached.frame_received(header, _NOTHING)
        elif not self._handshake.done():
            self._handshake.set_exception(error)
        else:
            log.warning("%s: %s", self.url, error)

    def pause_writing(self) -> None:
        """Stop writing to the stream."""
        self.writable = False

    def resume_writing(self) -> None:
        """Write to the stream again."""
        self.writable = True
        for attached in list(self.attached.values()):
            attached.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail every request, and tell every session."""
        self.lost = self._loss(error)
        if not self.ended.done():
            self.ended.set_result(None)
        for timer in (self._timer, self._renewal):
            if timer is not None:
                timer.cancel()
        requests, self._requests = self._requests, {}
        self._deadlines.clear()
        for future in [*(future for _, future in requests.values()), self._handshake]:
            if not future.done():
                future.set_exception(self.lost)
                future.exception()  # retrieved: an abandoned request is not logged
        attached, self.attached = self.attached, {}
        for one in attached.values():
            one.connection_lost(self.lost)

    def _loss(self, error: Exception | None) -> EngineError:
        if self._closing:
            return AlreadyClosedError("the client was closed")
        error = self.fault or error
        if isinstance(error, ProtocolError):
            if not self._handshake.done():  # raised to the caller of handshake()
                return WrongPeerError(f"cannot talk to {self.url}: {error}")
            log.error("%s: %s", self.url, error)
        if error is None and not self._handshake.done():
            return ConnectError(f"cannot connect to {self.url}: it hung up without an answer; does it require TLS?")
        return ConnectError(f"the connection to {self.url} was lost: {error or 'closed by the broker'}")

    # -- keep-alive ------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        """Every period: ping a peer that was silent, drop one that was silent for two periods.

        A period in which this process did not run for long does not count: the peer's frames wait to be read.
        """
        if self.heard:
            self._silent = 0
        elif self._loop.time() - self._due < self._keep_alive_s / 2:
            self._silent += 1
        self.heard = False
        if self._silent >= 2:
            log.warning("%s: silent for %g s, dropped", self.url, 2 * self._keep_alive_s)
            self.stream.abort()
            return
        if self._silent:
            self.stream.send(commands.Ping())
        self._ping_later()

    def _ping_later(self) -> None:
        self._due = self._loop.time() + self._keep_alive_s
        self._timer = self._loop.call_at(self._due, self._keep_alive)


def ignore_outcome(future: Any) -> None:
    """Retrieve the outcome of a future that is not awaited, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
