"""`Link`: one session of a client on a connection, opened by a request, ended once by either side.

A producer's sender, a consumer's attachment and registration, a topic's lookup, a watched list of topics and a reader
at the tail of a segment are such sessions. Each attempt to open one is a link of its own: what an earlier attempt left
behind, on this connection or another one that gave the same id, cannot be taken for news of this one.

open(), in this order:

    connect    to the broker, which may take a while. Closed meanwhile: nothing is sent.
    register   an id, before the request goes out: a frame may arrive right behind the answer, or ahead of it.
    request    Refused: the broker has kept nothing. Without an answer (cancelled, timed out) it may have opened the
               session, and is told that it is over.
    resume     Between the answer's arrival and the step in which open() resumes, other callbacks run:
               closed by the session: the broker was told by then, and open() returns None;
               connection lost: the session is not told, since it never had the link: open() raises the loss;
               ended by the broker: the session was told like of any end, and open() raises NotOwnerError.

From then on the session is told of the link's end once, unless it has ended the link itself.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine._native.wire.sessions import SessionEnd
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.net.pool import Pool
from engine.errors import ConnectError, EngineError, NotOwnerError, TimeoutError
from engine.wire import commands
from engine.wire.commands import Answer, Closing, Header, Request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkKind:
    """The commands of one kind of session.

    `opens`: the request. `id_field`: the header field with the link's id. `closes`: how the client ends it, None where
    it just stops listening. `ended_by`: how the broker does.
    """

    opens: type[Request[Any]]
    id_field: str
    closes: type[Closing | commands.ScalableTopicClose | commands.WatchTopicListClose] | None
    ended_by: type[Closing] | None = None


PRODUCER = LinkKind(commands.Producer, "producer_id", commands.CloseProducer, commands.CloseProducer)
CONSUMER = LinkKind(commands.Subscribe, "consumer_id", commands.CloseConsumer, commands.CloseConsumer)
# Not closed: to the controller, the end of a registration would be a leave, and the share would go to others at once.
REGISTRATION = LinkKind(commands.ScalableTopicSubscribe, "consumer_id", None, commands.CloseConsumer)
LOOKUP = LinkKind(commands.ScalableTopicLookup, "session_id", commands.ScalableTopicClose)
TOPIC_LIST = LinkKind(commands.WatchTopicList, "session_id", commands.WatchTopicListClose)


class LinkState(enum.Enum):
    """`CLOSED`: by this side; `ENDED`: by the broker, or with the connection."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    ENDED = "ended"


_MOVES = {
    LinkState.NEW: {LinkState.OPENING, LinkState.CLOSED},
    LinkState.OPENING: {LinkState.OPEN, LinkState.CLOSED, LinkState.ENDED},
    LinkState.OPEN: {LinkState.CLOSED, LinkState.ENDED},
    LinkState.CLOSED: set[LinkState](),
    LinkState.ENDED: set[LinkState](),
}


class LinkSession(Protocol):
    """What a link belongs to. All methods run on the loop and must neither block nor raise."""

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A frame with the link's id, but for the one that ends it."""

    def resume_writing(self) -> None:
        """The connection takes data again after it had too much unsent."""

    def link_ended(self, error: EngineError) -> None:
        """Its link was ended by the broker, or with its connection; what was ended before it was open, by the broker
        alone.
        """


class Link(SessionEnd):
    """Used for one attempt. Loop thread only. `connection` and `ident` are there once it is opening."""

    __slots__ = ("_kind", "_pool", "connection", "ident", "state")

    connection: Connection
    ident: int

    def __init__(self, pool: Pool, kind: LinkKind, session: LinkSession) -> None:
        self.state = LinkState.NEW
        self._pool = pool
        self._kind = kind
        super().__init__(session, kind.ended_by)

    def _move_to(self, state: LinkState) -> None:
        assert state in _MOVES[self.state], f"a link cannot move from {self.state} to {state}"
        self.state = state

    async def open(
        self, url: str | None, request_of: Callable[[int], Request[Answer]], timeout: float | None
    ) -> Answer | None:
        """The answer; None when close() was called first. `request_of(id)` makes the request.

        Raises what the pool and the broker raise, ConnectError, TimeoutError after `timeout` seconds, NotOwnerError.
        """
        connection = await self._pool.get(url)
        if self._is_closed():
            return None
        self.connection, self.ident = connection, connection.next_id()
        self._move_to(LinkState.OPENING)
        connection.attach(self.ident, self)
        try:
            answer = await connection.request(request_of(self.ident), timeout)
        except EngineError as e:
            if self._is_closed():
                return None  # whatever the answer is, it is not wanted any more
            if isinstance(e, TimeoutError):
                self.close()
            else:
                self.drop()
            raise
        except BaseException:
            self.close()
            raise
        return answer if self._answered() else None

    def _is_closed(self) -> bool:
        return self.state is LinkState.CLOSED

    def _answered(self) -> bool:
        """Whether the link is open, as of the step in which open() resumes."""
        if self._is_closed():
            return False
        if self.connection.lost is not None:
            raise self.connection.lost
        if self.state is LinkState.ENDED:
            raise NotOwnerError(f"{self._kind.opens.command.name}: the broker ended the session as it began")
        self._move_to(LinkState.OPEN)
        return True

    # -- ending ----------------------------------------------------------------------------------------------

    def drop(self) -> bool:
        """End it without telling the broker; whether the broker still has the session. Idempotent."""
        live = self.state in (LinkState.OPENING, LinkState.OPEN)
        if live or self.state is LinkState.NEW:
            self._move_to(LinkState.CLOSED)
        if live:
            self.connection.detach(self.ident)
        return live and self.connection.lost is None

    def close(self) -> None:
        """End it and tell the broker, without waiting for its answer. Idempotent."""
        if not self.drop() or (closing := self._closing({})) is None:
            return
        if isinstance(closing, Closing):
            self.connection.start_request(closing).add_done_callback(ignore_outcome)
        else:
            self.connection.stream.send(closing)

    def _closing(self, fields: dict[str, Any]) -> Header | None:
        """What tells the broker of the end; None: nothing does."""
        named = {self._kind.id_field: self.ident, **fields}
        return None if self._kind.closes is None else self._kind.closes(**named)

    async def close_and_wait(self, fields: dict[str, Any] | None = None) -> None:
        """End it, tell the broker (with `fields`, too) and wait until it has confirmed that. Idempotent."""
        if self.state is not LinkState.OPEN:
            self.close()
        elif self.drop() and isinstance(closing := self._closing(fields or {}), Closing):
            try:
                await self.connection.request(closing, self._pool.options.operation_timeout)
            except EngineError as e:
                log.debug("%s: %s was not confirmed: %s", self.connection.url, closing.command.name, e)

    # -- Attached --------------------------------------------------------------------------------------------

    def end_received(self, header: Closing) -> None:
        """See SessionEnd."""
        self.connection.detach(self.ident)
        self._move_to(LinkState.ENDED)
        code, message = header.code or ConnectError.code, header.message or "closed"
        self.session.link_ended(EngineError.from_code(code, message))

    def resume_writing(self) -> None:
        """See Attached."""
        if self.state is LinkState.OPEN:
            self.session.resume_writing()

    def connection_lost(self, error: EngineError) -> None:
        """See Attached."""
        before = self.state
        if before is LinkState.CLOSED:
            return  # by another session, as that was told of the same loss
        self._move_to(LinkState.ENDED)
        if before is LinkState.OPEN:
            self.session.link_ended(error)
