"""When one end of a socket writes what was sent, as plainly as it can be said: the model of `socket_end.pyx`."""

from __future__ import annotations

SMALL = 16 * 1024  # a frame up to this size may wait for the others of its turn of the loop
GATHERED_MAX = 64 * 1024


class PlainSocketEnd:
    """`written`: each write, as one piece of bytes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._waiting: list[bytes] = []
        self._first = True  # nothing was sent in this turn

    def send(self, frame: bytes) -> None:
        if len(frame) > SMALL:
            self._waiting.append(frame)
            self.flush()
        elif self._first:
            self._first = False
            self.written.append(frame)
        else:
            self._waiting.append(frame)
            if sum(len(one) for one in self._waiting) > GATHERED_MAX:
                self.flush()

    def gather(self) -> None:
        self._first = False

    def flush(self) -> None:
        if self._waiting:
            self.written.append(b"".join(self._waiting))
            self._waiting = []

    def end_of_turn(self) -> None:
        self._first = True
        self.flush()
