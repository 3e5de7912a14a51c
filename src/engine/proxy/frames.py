"""`FrameCutter`: splits a byte stream into runs that are forwarded unchanged, and the few frames that are wanted whole.

Of a forwarded frame only the first nine bytes are parsed, and no more of it is buffered than arrived in one piece.
docs/formats/wire.md defines the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack

from engine.errors import EngineError, ProtocolError
from engine.limits import FRAME_HEADER_SIZE_MAX, FRAME_PREFIX_SIZE, FRAME_SIZE_MAX
from engine.wire.commands import Command, Error, Header, decode
from engine.wire.framing import encode_bytes

_PREFIX = struct.Struct("<IBI")
_LENGTH_SIZE = 4
_HELLO_SIZE_MAX = 64 * 1024  # of the first frame in either direction

Piece = bytes | bytearray | memoryview
Wants = Callable[[int, int], bool]


class FrameCutter:
    """Takes received bytes. `wants(type, size)` decides for each frame, by its prefix, whether it is wanted whole.

    `wants` may raise to refuse a frame. Frames of types unknown to this build are forwarded.
    """

    __slots__ = ("_kind", "_left", "_needed", "_part", "_wants", "frame_size_max")

    def __init__(self, wants: Wants, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._wants = wants
        self.frame_size_max = frame_size_max
        self._left = 0  # bytes left of the frame being forwarded
        # The partial frame that is wanted whole, or its prefix; _kind is None until the prefix is complete.
        self._part: bytearray | None = None
        self._kind: int | None = None
        self._needed = 0

    @property
    def between(self) -> bool:
        """Whether the forwarded bytes end with a whole frame, so that another one may follow."""
        return self._left == 0

    def feed(self, data: bytes) -> Iterator[tuple[int | None, Piece]]:
        """(None, bytes to forward) and (type, a whole frame), in order.

        Raises ProtocolError, and what `wants` raises.
        """
        view, at, size = memoryview(data), 0, len(data)
        if self._part is not None:
            at = self._collect(view)
            if self._part is not None and len(self._part) >= self._needed:
                yield self._collected()
        start = at
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                continue
            if size - at < FRAME_PREFIX_SIZE:
                self._hold(view[at:], None, FRAME_PREFIX_SIZE)
                break
            kind, padded = self._head_at(view, at)
            if not self._wants(kind, padded):
                self._left = padded
                continue
            if start < at:
                yield None, view[start:at]
            if size - at < padded:
                self._hold(view[at:], kind, padded)
                return
            at += padded
            yield kind, view[at - padded : at]
            start = at
        if start < at:
            yield None, view[start:at]

    def _hold(self, view: memoryview, kind: int | None, needed: int) -> None:
        self._part, self._kind, self._needed = bytearray(view), kind, needed

    def _collect(self, view: memoryview) -> int:
        """Append the beginning of `view` to the partial frame; returns the number of bytes taken."""
        assert self._part is not None
        at = self._take(view, 0)
        if self._kind is None and len(self._part) == FRAME_PREFIX_SIZE:
            kind, padded = self._head_at(self._part, 0)
            if self._wants(kind, padded):
                self._kind, self._needed = kind, padded
                at = self._take(view, at)
            else:
                self._left = padded - FRAME_PREFIX_SIZE
        return at

    def _take(self, view: memoryview, at: int) -> int:
        assert self._part is not None
        step = min(self._needed - len(self._part), len(view) - at)
        self._part += view[at : at + step]
        return at + step

    def _collected(self) -> tuple[int | None, Piece]:
        part, kind = self._part, self._kind
        assert part is not None
        self._part = self._kind = None
        return kind, part

    def _head_at(self, view: Piece, at: int) -> tuple[int, int]:
        """(type, size with its padding) of the frame that begins there."""
        length, kind, header_size = _PREFIX.unpack_from(view, at)
        total = length + _LENGTH_SIZE
        if total > self.frame_size_max:
            raise ProtocolError(f"a frame must be of at most {self.frame_size_max} bytes, got {total}")
        if header_size > FRAME_HEADER_SIZE_MAX or header_size + FRAME_PREFIX_SIZE > total:
            raise ProtocolError(f"a frame of {total} bytes cannot hold a header of {header_size} bytes")
        return kind, total + (-total & 7)


class Said(NamedTuple):
    """A frame that begins a connection.

    `fields`: of its header, also those that are not known here: what is said to the other side has them, too. `rest`:
    the bytes that came behind it.
    """

    header: Header
    fields: dict[str, Any]
    rest: bytes


class Hello:
    """The first frame of a connection, received in parts; the bytes after it stay unparsed."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._cutter = FrameCutter(self._refuse_large)
        self._frame: tuple[int, Piece] | None = None

    @staticmethod
    def _refuse_large(kind: int, size: int) -> bool:
        if size > _HELLO_SIZE_MAX:
            raise ProtocolError(f"the first frame must be of at most {_HELLO_SIZE_MAX} bytes, got {size}")
        return True

    def feed(self, data: bytes) -> bool:
        """Whether the frame is whole. Raises ProtocolError."""
        self._data += data
        if self._frame is None:
            for kind, piece in self._cutter.feed(data):
                assert kind is not None  # all are wanted
                self._frame = kind, piece
                break
        return self._frame is not None

    def take(self) -> Said:
        """The frame, and the bytes received after it. Raises ProtocolError."""
        assert self._frame is not None
        kind, frame = self._frame
        command = Command(kind) if kind in Command._value2member_map_ else None
        if command is None:
            raise ProtocolError(f"the first frame is of the unknown type {kind}")
        packed = _header(frame)
        header = decode(command, packed)
        try:
            fields = msgpack.unpackb(packed)
        except Exception as e:  # in what is not looked at here
            raise ProtocolError(f"{command.name}: the header is not msgpack: {type(e).__name__} {e}") from e
        return Said(header, fields, bytes(self._data[len(frame) :]))


def _header(frame: Piece) -> memoryview:
    size = _PREFIX.unpack_from(frame, 0)[2]
    return memoryview(frame)[FRAME_PREFIX_SIZE : FRAME_PREFIX_SIZE + size]


def field_of(frame: Piece, name: str) -> Any:
    """One field of a whole frame's header, without decoding the others. None: missing. Raises ProtocolError."""
    kind = frame[4]
    unpacker = msgpack.Unpacker(max_buffer_size=FRAME_HEADER_SIZE_MAX)
    try:
        unpacker.feed(_header(frame))
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == name:
                return unpacker.unpack()
            unpacker.skip()
    except Exception as e:  # msgpack raises many kinds for bytes that are not msgpack
        raise ProtocolError(f"a frame of type {kind}: the header is not msgpack: {type(e).__name__} {e}") from e
    return None


def error_frame(request_id: int, error: EngineError) -> bytes:
    """An ERROR frame that answers a request."""
    return encode_bytes(Error(request_id=request_id, code=error.code, message=str(error)))
