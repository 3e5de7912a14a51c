"""What both sides of a connection see: a stream of frames. TCP, in-memory and simulated ones look the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.wire.commands import Header
from engine.wire.packing import PackedHeader

if TYPE_CHECKING:
    from engine.wire.certificates import Certificate

Buffer = bytes | bytearray | memoryview
Payload = Buffer | Sequence[Buffer]
Sent = Header | PackedHeader


class FrameHandler(Protocol):
    """One end's owner. All methods run on the loop thread and must not block or raise.

    `payload` stays valid as long as the memoryview exists (its memory is never overwritten).
    """

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """One whole, checked frame."""

    def pause_writing(self) -> None:
        """The stream holds more unsent bytes than its high mark."""

    def resume_writing(self) -> None:
        """The unsent bytes fell below the low mark."""

    def connection_lost(self, error: Exception | None) -> None:
        """Called exactly once. None: closed in order; ProtocolError: the peer sent garbage."""


class FrameStream(Protocol):
    """One end of a connection."""

    peer: str  # for texts and logs

    @property
    def local_url(self) -> str | None:
        """The address that the peer has dialled; None where it dials no address, as within a process."""

    @property
    def is_near(self) -> bool:
        """Whether the peer runs on this machine, and so may share files with this process."""

    @property
    def certificate(self) -> Certificate | None:
        """That of the peer, which TLS has verified; None: it has shown none."""

    @property
    def peer_user(self) -> int | None:
        """The user id of the process at the other end of a Unix socket; None over TCP and within a process."""

    @property
    def header_size(self) -> int:
        """Bytes of the header of the frame that is being delivered; 0 where frames are not encoded."""

    @property
    def bytes_received(self) -> int:
        """Bytes received so far."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of all frames sent so far, those still queued included."""

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame; never blocks. After close() or loss: nothing. The caller gives up header and payload."""

    def gather(self) -> None:
        """Let what is sent in this turn of the loop go in one piece, at its end, or by flush()."""

    def flush(self) -> None:
        """What was gathered goes now."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued in this process and not yet given to the system."""

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole, or that is not wanted yet; 0 where frames come whole."""

    def trim(self) -> None:
        """Hold little more memory than what is received and not delivered needs; costs little however often."""

    def compact(self) -> None:
        """Hold no more memory than half a received frame needs. For connections that went quiet."""

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call it once all that is queued now was given to the system, or the stream has ended; never at once."""

    def pause_reading(self) -> None:
        """Deliver no more frames until resume_reading(); the peer's writes back up."""

    def resume_reading(self) -> None:
        """Undo pause_reading()."""

    def close(self) -> None:
        """Send what is queued, then close; connection_lost(None) follows."""

    def abort(self) -> None:
        """Close at once, dropping what is queued; connection_lost follows."""


class Speaker(Protocol):
    """Another protocol on one connection: what it cuts from the bytes received, and how it encodes what is sent."""

    def frame_size(self, head: memoryview) -> int:
        """Bytes of the frame that begins with `head`, at least FRAME_PREFIX_SIZE bytes. Raises ProtocolError."""

    def frame_received(self, frame: memoryview) -> None:
        """One whole frame. Its memory is never overwritten."""

    def encode(self, header: Sent, payload: Payload) -> tuple[list[Buffer], int]:
        """What to write for a frame of ours, perhaps nothing, and its size."""

    def connection_lost(self) -> None:
        """The connection has ended; its handler knows."""


# Asked once, with the first FRAME_PREFIX_SIZE bytes of a connection. None: they are ours.
Recognise = Callable[[bytes, FrameStream, FrameHandler], Speaker | None]


class Connector(Protocol):
    """Opens connections for a client: over TCP, in memory, or in a simulation."""

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        """A connected stream; `handler` is called once with it and returns its owner. Raises ConnectError."""
