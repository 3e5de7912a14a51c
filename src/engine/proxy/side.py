"""`Side`: one TCP connection of a session, the client's or the broker's. Raw bytes in, raw bytes out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from engine.errors import ConnectError
from engine.limits import PROXY_WRITE_HIGH, PROXY_WRITE_LOW
from engine.proxy.frames import Piece
from engine.wire.url import format_url

_CHECK_S = 0.02  # between two checks of the transport's queue for after()


class SideOwner(Protocol):
    """The receiver of a side's events. No method may raise."""

    def opened(self, side: Side) -> None:
        """The connection is established."""

    def received(self, side: Side, data: bytes) -> None:
        """Bytes were received."""

    def full(self, side: Side, is_full: bool) -> None:
        """The send queue rose above the high watermark, or fell to the low one."""

    def ended(self, side: Side, error: Exception | None) -> None:
        """The connection ended; called once. None: closed in order."""


class Side(asyncio.Protocol):
    """One TCP connection.

    Invariant: everything given to after() is called exactly once. Checked by connection_lost(), which empties the list.
    """

    def __init__(self, owner: SideOwner) -> None:
        self.peer = "not connected"
        self.is_full = False
        self.lost = False
        self.written = 0  # bytes, including those queued here
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._held: set[str] = set()  # reasons for pausing reading
        # Callbacks by position: called when the system has taken all bytes up to it.
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio's side --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(PROXY_WRITE_HIGH, PROXY_WRITE_LOW)
        name = transport.get_extra_info("peername")
        self.peer = format_url(name[0], name[1], "tcp") if isinstance(name, tuple) else "tcp"
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        if not self._closing:
            self._owner.received(self, data)

    def eof_received(self) -> bool:
        """asyncio: the peer closed its end; so do we."""
        return False

    def pause_writing(self) -> None:
        """asyncio: over the high mark."""
        self.is_full = True
        self._owner.full(self, True)

    def resume_writing(self) -> None:
        """asyncio: at the low mark."""
        self.is_full = False
        self._check()
        self._owner.full(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection ended, by either end."""
        self.lost = self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._waiting.popleft()[1]()
        self._owner.ended(self, None if exc is None else ConnectError(f"the connection to {self.peer} was lost: {exc}"))

    # -- the owner's side ------------------------------------------------------------------------------------------

    def write(self, data: Piece) -> None:
        """Queue bytes; ignored after close() or loss."""
        if not self._closing and self._transport is not None:
            self.written += len(data)
            self._transport.write(data)

    def after(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the system has taken everything written so far, or the connection is lost."""
        if self.lost or self._transport is None:
            callback()
            return
        self._waiting.append((self.written, callback))
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._check_again)

    def _check_again(self) -> None:
        self._timer = None
        self._check()
        if self._waiting:
            self._timer = self._loop.call_later(_CHECK_S, self._check_again)

    def _check(self) -> None:
        taken = self.written - self.unsent_bytes
        while self._waiting and self._waiting[0][0] <= taken:
            self._waiting.popleft()[1]()

    @property
    def unsent_bytes(self) -> int:
        """Queued here and not handed to the system."""
        return 0 if self._transport is None or self.lost else self._transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport | None:
        """Of its connection."""
        return self._transport

    @property
    def local_host(self) -> str | None:
        """The address of this end: the one dialled by the peer of an accepted connection."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return name[0] if isinstance(name, tuple) else None

    def hold(self, reason: str) -> None:
        """Pause reading until every reason is released."""
        if not self._held and not self._closing and self._transport is not None:
            self._transport.pause_reading()
        self._held.add(reason)

    def release(self, reason: str) -> None:
        """Undo hold()."""
        if reason in self._held:
            self._held.remove(reason)
            if not self._held and not self._closing and self._transport is not None:
                self._transport.resume_reading()

    def close(self) -> None:
        """Send what is queued, then close. Idempotent."""
        if not self._closing:
            self._closing = True
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None and not self.lost:
            self._transport.abort()
