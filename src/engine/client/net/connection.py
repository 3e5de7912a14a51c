"""One multiplexed connection to one broker: handshake, requests and their answers, keep-alive.

What lives on it (a layout session, a producer's lane, a consumer's attachment) registers under an id that is
unique within the connection, gets the frames that carry this id, and is told when the connection is lost. Making a new
connection is the pool's work, attaching again is theirs.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from typing import Any, Protocol

from engine.client.net.deadlines import Deadlines
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    EngineError,
    InvalidArgumentError,
    ProtocolError,
    TimeoutError,
    UnsupportedError,
    WrongPeerError,
)
from engine.limits import HANDSHAKE_S_MAX, KEEP_ALIVE_S
from engine.wire.answers import check_answer, check_frame
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Command, Header
from engine.wire.maps import MapStream, fields_of
from engine.wire.stream import FrameStream, Payload

log = logging.getLogger(__name__)

_NOTHING = memoryview(b"")

# The header field that names the addressee of frames the broker sends on its own account.
_ADDRESSEE = {
    Command.SEND_RECEIPT: "producer_id",
    Command.SEND_ERROR: "producer_id",
    Command.CLOSE_PRODUCER: "producer_id",
    Command.MESSAGE: "consumer_id",
    Command.REACHED_END: "consumer_id",
    Command.CLOSE_CONSUMER: "consumer_id",
    Command.SCALABLE_TOPIC_ASSIGNMENT: "consumer_id",
    Command.SCALABLE_TOPIC_UPDATE: "session_id",
    Command.WATCH_TOPIC_LIST_UPDATE: "session_id",
}


class Attached(Protocol):
    """Something that lives on a connection. All methods run on the loop and must neither block nor raise."""

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        """A frame with its id. Answers to its own requests come here as well when they carry the id."""

    def resume_writing(self) -> None:
        """The connection takes data again after it had too much unsent."""

    def connection_lost(self, error: EngineError) -> None:
        """The connection is gone, and with it everything the broker knew of this id."""


class Connection:
    """A FrameHandler: the client's end. Made by `Connection.open`. Loop thread only."""

    def __init__(self, url: str, stream: FrameStream) -> None:
        self.url = url
        self.stream = MapStream(stream)
        self.lost: EngineError | None = None
        self.writable = True
        # From CONNECTED; fixed after the handshake.
        self.broker_url = url
        self.admin_url: str | None = None
        self.features: frozenset[str] = frozenset()
        self.proxied = False  # over a proxy, as every other broker is to be reached

        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()  # done when it is lost
        self._handshake: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._requests: dict[int, tuple[Command, asyncio.Future[dict[str, Any]]]] = {}
        self._fault: ProtocolError | None = None  # why this end has dropped it
        self._deadlines = Deadlines[int](self._missed)  # of those that have one
        self._attached: dict[int, Attached] = {}
        self._last_id = 0
        self._heard = True
        self._silent = 0
        self._keep_alive_s = KEEP_ALIVE_S
        self._due = 0.0  # when it is looked whether the peer was silent, of the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    # -- opening and closing ---------------------------------------------------------------------------------

    async def handshake(self, token: str | None, target: str | None = None) -> None:
        """Say CONNECT, wait for CONNECTED. `target`: the broker that is meant, when a proxy is dialled.

        Raises ConnectError, AuthenticationError, UnsupportedError, ProtocolError.
        """
        hello = {
            "magic": MAGIC,
            "protocol": PROTOCOL_VERSION,
            "features": list(FEATURES),
            "client": "engine-python",
            "token": token,
            "target": target,
        }
        self.stream.send(Command.CONNECT, hello)
        try:
            async with asyncio.timeout(HANDSHAKE_S_MAX):
                answer = await self._handshake
        except builtins.TimeoutError as e:
            self.stream.abort()
            raise ConnectError(f"{self.url} did not answer the handshake within {HANDSHAKE_S_MAX:g} s") from e
        self._connected(answer)

    def _connected(self, answer: dict[str, Any]) -> None:
        self.features = frozenset(answer["features"]) & frozenset(FEATURES)
        if "scalable-topics" not in self.features:
            self.stream.close()
            raise UnsupportedError(f"the broker at {self.url} lacks the feature scalable-topics")
        self.broker_url = answer["broker"] or self.url
        self.admin_url = answer.get("admin")
        self.proxied = bool(answer.get("proxied"))
        self._keep_alive_s = float(answer["keep_alive"])
        if self._keep_alive_s > 0:
            self._look_again()

    @property
    def is_near(self) -> bool:
        """Whether the broker is on this machine, as far as this end can tell."""
        return not self.proxied and bool(getattr(self.stream, "is_near", False))

    def fail(self, error: ProtocolError) -> None:
        """The peer said something that cannot be: drop the connection; everything on it attaches anew."""
        self._fault = self._fault or error
        self.stream.abort()

    def close(self) -> None:
        """Send what is queued, then end. Idempotent."""
        self._closing = True
        if self.lost is None:
            self.stream.close()

    # -- requests --------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """An id that nothing else on this connection has."""
        self._last_id += 1
        return self._last_id

    def attach(self, ident: int, attached: Attached) -> None:
        """From now on `attached` gets the frames for `ident`."""
        self._attached[ident] = attached

    def detach(self, ident: int) -> None:
        """Frames for `ident` are dropped from now on."""
        self._attached.pop(ident, None)

    def end_session(self, ident: int, command: Command) -> None:
        """Nothing more of a session is wanted: the broker is told by this command, unless the connection is lost."""
        if self.lost is None:
            self.detach(ident)
            self.stream.send(command, {"session_id": ident})

    def start_request(
        self, command: Command, header: dict[str, Any], payload: Payload = b"", *, timeout_s: float | None = None
    ) -> asyncio.Future[dict[str, Any]]:
        """Send a request; the future ends with the answer's header, the broker's error, or ConnectError.

        `timeout_s`: it ends with TimeoutError when there is no answer by then, also where nobody waits for it any more.
        """
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost)
            return future
        request_id = self.next_id()
        header["request_id"] = request_id
        self._requests[request_id] = command, future
        if timeout_s is not None:
            self._deadlines.add(request_id, self._loop.time() + timeout_s)
        self.stream.send(command, header, payload)
        return future

    def _missed(self, request_id: int) -> None:
        """The answer has not come in its time."""
        _, future = self._requests.pop(request_id, (None, None))
        if future is not None and not future.done():
            future.set_exception(TimeoutError(f"{self.url} did not answer in time"))

    async def request(self, command: Command, header: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """The answer's header. Raises the broker's error, ConnectError, TimeoutError after `timeout` seconds."""
        future = self.start_request(command, header)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except builtins.TimeoutError as e:
            if isinstance(e, TimeoutError):
                raise  # the broker's own
            raise TimeoutError(f"{self.url} did not answer {command.name} within {timeout:g} s") from e
        finally:
            self._requests.pop(header.get("request_id", 0), None)

    # -- FrameHandler ----------------------------------------------------------------------------------------

    def frame_received(self, received: Header, payload: memoryview) -> None:
        """Hand the frame to its addressee, or its answer to the request. A malformed one is the last."""
        command, header = received.command, fields_of(received)
        self._heard = True
        if self._fault is not None:
            return  # dropped, and not gone yet
        try:
            check_frame(command, header)
            self._received(command, header, payload)
        except ProtocolError as e:
            self.fail(e)
        except InvalidArgumentError as e:  # by what takes a part of it
            self.fail(ProtocolError(f"{command.name} is malformed: {e}"))

    def _received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        request_id = header.get("request_id")
        asked, future = self._requests.get(request_id or 0, (None, None))
        if asked is not None:
            check_answer(asked, command, header)
        addressee = _ADDRESSEE.get(command)
        if addressee is not None:
            self._hand_on(header[addressee], command, header, payload)
            if command is Command.SEND_RECEIPT:
                for receipt in header.get("more") or ():  # of other producers
                    self._hand_on(receipt["producer_id"], command, receipt, _NOTHING)
        if request_id:
            self._answered(command, header, request_id, future)
        elif addressee is None:
            self._special(command, header)

    def _hand_on(self, ident: int, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        if (attached := self._attached.get(ident)) is not None:
            attached.frame_received(command, header, payload)

    def _answered(
        self, command: Command, header: dict[str, Any], request_id: int, future: asyncio.Future[dict[str, Any]] | None
    ) -> None:
        self._requests.pop(request_id, None)
        self._deadlines.discard(request_id)
        if future is None or future.done():
            return
        if command is Command.ERROR:
            future.set_exception(EngineError.from_code(header["code"], header["message"]))
        else:
            future.set_result(header)

    def _special(self, command: Command, header: dict[str, Any]) -> None:
        if command is Command.PING:
            self.stream.send(Command.PONG, {})
        elif command is Command.CONNECTED:
            if not self._handshake.done():
                self._handshake.set_result(header)
        elif command is Command.ERROR:
            self._error_received(header)

    def _error_received(self, header: dict[str, Any]) -> None:
        """An error that answers no request: the handshake was refused, or a layout session has ended."""
        error = EngineError.from_code(header["code"], header["message"])
        attached = self._attached.get(header.get("session_id", 0))
        if attached is not None:
            attached.frame_received(Command.ERROR, header, memoryview(b""))
        elif not self._handshake.done():
            self._handshake.set_exception(error)
        else:
            log.warning("%s: %s", self.url, error)

    def pause_writing(self) -> None:
        """Stop feeding the stream."""
        self.writable = False

    def resume_writing(self) -> None:
        """Feed the stream again."""
        self.writable = True
        for attached in list(self._attached.values()):
            attached.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """End everything that waits on this connection."""
        self.lost = self._loss(error)
        if not self.ended.done():
            self.ended.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        requests, self._requests = self._requests, {}
        self._deadlines.clear()
        for future in [*(future for _, future in requests.values()), self._handshake]:
            if not future.done():
                future.set_exception(self.lost)
                future.exception()  # retrieved: an abandoned request is no news
        attached, self._attached = self._attached, {}
        for one in attached.values():
            one.connection_lost(self.lost)

    def _loss(self, error: Exception | None) -> EngineError:
        if self._closing:
            return AlreadyClosedError("the client was closed")
        error = self._fault or error
        if isinstance(error, ProtocolError):
            if not self._handshake.done():  # whoever connects is told
                return WrongPeerError(f"cannot talk to {self.url}: {error}")
            log.error("%s: %s", self.url, error)
        if error is None and not self._handshake.done():
            return ConnectError(f"cannot connect to {self.url}: it hung up without a word; does it want TLS?")
        return ConnectError(f"the connection to {self.url} was lost: {error or 'closed by the broker'}")

    # -- keep-alive ------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        """Every period: a peer that was silent is pinged, one silent for two periods is dropped.

        A period in which this process had no turn for long says nothing of the peer: its frames wait to be read.
        """
        if self._heard:
            self._silent = 0
        elif self._loop.time() - self._due < self._keep_alive_s / 2:
            self._silent += 1
        self._heard = False
        if self._silent >= 2:
            log.warning("%s: silent for %g s, dropped", self.url, 2 * self._keep_alive_s)
            self.stream.abort()
            return
        if self._silent:
            self.stream.send(Command.PING, {})
        self._look_again()

    def _look_again(self) -> None:
        self._due = self._loop.time() + self._keep_alive_s
        self._timer = self._loop.call_at(self._due, self._keep_alive)


def ignore_outcome(future: Any) -> None:
    """Retrieve the outcome of something nobody waits for."""
    if not future.cancelled():
        future.exception()
