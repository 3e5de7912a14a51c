"""`Lane`: one direction of a session. Forwards bytes of one side to the other; inserts whole frames in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.limits import FRAME_SIZE_MAX
from engine.proxy.frames import FrameCutter, Piece, Wants
from engine.proxy.side import Side

Take = Callable[[int, Piece], None]


class Lane:
    """One direction of a session.

    `take(type, frame)` gets the frames that `wants` selected; it forwards them by put(), or does not.
    """

    def __init__(self, target: Side, wants: Wants, take: Take, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.bytes = 0  # forwarded so far
        self._target = target
        self._take = take
        self._cutter = FrameCutter(wants, frame_size_max)
        self._waiting: deque[tuple[Piece, Callable[[], None] | None]] = deque()  # until the forwarded frame ends

    @property
    def between(self) -> bool:
        """Whether the other side has received whole frames only."""
        return self._cutter.between

    @property
    def unsent_bytes(self) -> int:
        """Queued for the other side and not handed to the system."""
        return self._target.unsent_bytes

    def feed(self, data: bytes) -> None:
        """Take received bytes. Raises ProtocolError, and what `wants` and `take` raise."""
        for kind, piece in self._cutter.feed(data):
            if kind is None:
                self._write(piece)
            else:
                self._take(kind, piece)
        while self._waiting and self.between:
            self._put(*self._waiting.popleft())

    def put(self, frame: Piece, sent: Callable[[], None] | None = None) -> None:
        """Send a whole frame: now, or after the one being forwarded. `sent` is called once the system has taken it,
        or the connection is lost.
        """
        if self.between and not self._waiting:
            self._put(frame, sent)
        else:
            self._waiting.append((frame, sent))

    def _put(self, frame: Piece, sent: Callable[[], None] | None) -> None:
        self._write(frame)
        if sent is not None:
            self._target.after(sent)

    def _write(self, piece: Piece) -> None:
        self.bytes += len(piece)
        self._target.write(piece)

    def close(self) -> None:
        """Stop forwarding; call `sent` of every waiting frame."""
        while self._waiting:
            _, sent = self._waiting.popleft()
            if sent is not None:
                sent()
