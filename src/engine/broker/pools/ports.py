"""What the pools see of a connection: how it is paused and resumed, and what its stream holds."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Protocol

from engine.wire.stream import FrameStream


class Pause(enum.Enum):
    """Why frames of a connection are not read."""

    ADMISSION = "admission"  # it has more frames than one turn of the loop admits
    PUBLISHING = "publishing"  # the publish pool is full
    RATE = "rate"  # a producer on it has sent more than its rate allows
    REQUESTS = "requests"  # it has as many requests in flight as one connection may have
    ANSWERS = "answers"  # its peer does not read what it is sent
    ROLE = "role"  # what its role may do, and how much, is not known yet
    REFUSED = "refused"  # it is closed in a moment
    CLOSING = "closing"  # the broker is


class Held(Protocol):
    """A connection that the pools pause and resume: what it reads, and the blocks that it is sent."""

    noted: int  # its unsent bytes, as OutboundMemory last counted them

    @property
    def stream(self) -> FrameStream:
        """Where its frames come from and go to."""

    def hold(self, reason: Pause) -> bool:
        """Read no frames until every reason is released; whether this one is new."""

    def release(self, reason: Pause) -> None:
        """Undo hold()."""

    def hold_back(self) -> None:
        """Send no blocks until relieve(): the outbound pool is full, and some of it waits for this peer."""

    def relieve(self) -> None:
        """Undo hold_back(); the connection still waits for its turn."""

    def wait_turn(self) -> None:
        """Send no blocks until take_turn()."""

    def take_turn(self) -> None:
        """Send again, unless something else is in the way."""


class Followed(Protocol):
    """The limits that are followed, by group: "*", a tenant, or "role:NAME"."""

    @property
    def told(self) -> Collection[str]:
        """The groups whose limits are known."""

    def is_ready(self, group: str) -> bool:
        """Whether ready() need not be awaited."""

    async def ready(self, group: str, within_s: float = ...) -> object:
        """Wait until the limits of a group are known. Raises TimeoutError, AlreadyClosedError."""


class Receiving(Protocol):
    """A connection that may hold a part of a frame."""

    @property
    def stream(self) -> FrameStream:
        """Where its frames come from."""

    @property
    def stalled_since(self) -> tuple[float, float]:
        """The loop's time since when it is at one frame, and since when it is connected."""
