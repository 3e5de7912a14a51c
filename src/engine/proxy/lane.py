"""`Lane`: one direction of a session. What comes from one side goes to the other; whole frames go in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.limits import FRAME_SIZE_MAX
from engine.proxy.frames import FrameCutter, Piece, Wants
from engine.proxy.side import Side

Take = Callable[[int, Piece], None]


class Lane:
    """Loop thread only.

    `take(type, frame)` gets the frames that `wants` has asked for; they go on only if it says so, by put().
    """

    def __init__(self, target: Side, wants: Wants, take: Take, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.bytes = 0  # passed so far
        self._target = target
        self._take = take
        self._cutter = FrameCutter(wants, frame_size_max)
        self._waiting: deque[tuple[Piece, Callable[[], None] | None]] = deque()  # for the end of a frame

    @property
    def between(self) -> bool:
        """Whether the other side has whole frames only."""
        return self._cutter.between

    @property
    def unsent_bytes(self) -> int:
        """Queued for the other side and not given to the system."""
        return self._target.unsent_bytes

    def feed(self, data: bytes) -> None:
        """Bytes from the other side. Raises ProtocolError, and what `wants` and `take` raise."""
        for kind, piece in self._cutter.feed(data):
            if kind is None:
                self._write(piece)
            else:
                self._take(kind, piece)
        while self._waiting and self.between:
            self._put(*self._waiting.popleft())

    def put(self, frame: Piece, sent: Callable[[], None] | None = None) -> None:
        """A whole frame: now, or behind the one that is under way. `sent` is called when the system has taken it.

        When the connection is lost before that, `sent` is called all the same.
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
        """Nothing goes on any more; who waits is told."""
        while self._waiting:
            _, sent = self._waiting.popleft()
            if sent is not None:
                sent()
