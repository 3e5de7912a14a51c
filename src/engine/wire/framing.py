"""How a frame becomes bytes and bytes become frames.

    0   length u32, bytes after this field up to the end of the payload
    4   type u8, a Command
    5   header length u32
    9   header, a msgpack map
    …   zeros up to the next multiple of 8
    …   payload
    …   zeros up to the next multiple of 8, not counted in length

Little-endian. Every frame and every payload starts on a multiple of 8, so that the columns of an entry can be read
in place. docs/formats/wire.md has the commands and the limits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import cast

from engine.errors import InvalidArgumentError, ProtocolError
from engine.limits import FRAME_HEADER_SIZE_MAX, FRAME_PREFIX_SIZE, FRAME_SIZE_MAX
from engine.wire.chunks import Chunk, ChunkPool
from engine.wire.commands import Command, Header, decode
from engine.wire.commands import encode as encode_header
from engine.wire.packing import PackedHeader
from engine.wire.stream import Buffer, Payload, Sent, Speaker

_PREFIX = struct.Struct("<IBI")
_LENGTH_SIZE = 4
# What stands where a length should, and what its sender is.
_HTTP = {b"HTTP": "this port speaks HTTP; is it the admin API's? The service URL has the other port"} | dict.fromkeys(
    (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI"), "the peer speaks HTTP; the admin API has another port"
)
_TRIMMED = 4  # times what it holds: larger than that, a chunk is worth a copy
_PADDING = tuple(bytes(n) for n in range(8))
_COMMANDS: tuple[Command | None, ...] = tuple(
    Command(n) if n in Command._value2member_map_ else None for n in range(256)
)
_EMPTY = memoryview(b"")

Deliver = Callable[[Header, memoryview], None]


def payload_size(payload: Payload) -> int:
    """Bytes of a payload in either of its forms. Buffers must be contiguous and of single bytes."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return len(payload)
    return sum(map(len, payload))


def encode(header: Sent, payload: Payload = b"") -> tuple[list[Buffer], int]:
    """The frame as buffers to write one after the other, and their total size; the payload is not copied.

    Raises InvalidArgumentError when it would be over the limits.
    """
    command, packed = header if type(header) is PackedHeader else _pack(cast(Header, header))
    head_size = FRAME_PREFIX_SIZE + len(packed)
    head_padding = -head_size & 7
    body_size = payload_size(payload)
    total = head_size + head_padding + body_size
    if len(packed) > FRAME_HEADER_SIZE_MAX or total > FRAME_SIZE_MAX:
        raise InvalidArgumentError(
            f"{command.name} of {total} bytes, {len(packed)} of them header; at most {FRAME_SIZE_MAX}"
            f" and {FRAME_HEADER_SIZE_MAX} are allowed"
        )
    prefix = _PREFIX.pack(total - _LENGTH_SIZE, command, len(packed))
    buffers: list[Buffer] = [prefix + packed + _PADDING[head_padding]]
    if body_size:
        if isinstance(payload, (bytes, bytearray, memoryview)):
            buffers.append(payload)
        else:
            buffers.extend(payload)
        if padding := -total & 7:
            buffers.append(_PADDING[padding])
            total += padding
    return buffers, total


def _pack(header: Header) -> tuple[Command, bytes]:
    return header.command, encode_header(header)


def encode_bytes(header: Sent, payload: Payload = b"") -> bytes:
    """The frame in one piece; for tests and tools."""
    return b"".join(encode(header, payload)[0])


class FrameReader:
    """Cuts received bytes into frames: get_buffer() says where to receive to, received() delivers what is whole.

    `recognise` is asked with the first bytes whether they are of another protocol, whose frames a Speaker then gets.
    Owns a chunk of the pool only while it holds bytes that were not delivered yet. Loop thread only.
    """

    __slots__ = ("_chunk", "_deliver", "_delivering", "_end", "_needed", "_pool", "_speaker", "_start",
                 "bytes_received", "frame_size_max", "header_size", "paused", "recognise")  # fmt: skip

    def __init__(self, pool: ChunkPool, deliver: Deliver, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._pool = pool
        self._deliver = deliver
        self.frame_size_max = frame_size_max
        self.recognise: Callable[[bytes], Speaker | None] | None = None
        self._speaker: Speaker | None = None
        self.paused = False
        self.bytes_received = 0
        self.header_size = 0  # of the frame that is, or was last, delivered
        # The chunk in which [_start, _end) is received and not delivered; the frame at _start takes _needed bytes.
        self._chunk: Chunk | None = None
        self._start = 0
        self._end = 0
        self._needed = FRAME_PREFIX_SIZE
        self._delivering = False

    @property
    def pending_bytes(self) -> int:
        """Received and not delivered."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        chunk = self._chunk
        if chunk is None:
            chunk = self._chunk = self._pool.take()
            self._start = self._end = chunk.used
        elif self._start + self._needed > chunk.size or self._end == chunk.size:
            chunk = self._move_to(self._pool.take(max(self._needed, self.pending_bytes + 1)))
        view = chunk.view
        assert view is not None
        return view[self._end :]

    def received(self, size: int) -> None:
        """`size` bytes were put at the front of get_buffer(). Raises ProtocolError for what is no frame."""
        self._end += size
        self.bytes_received += size
        self.deliver()

    def deliver(self) -> None:
        """Deliver every whole frame, until paused. Raises ProtocolError."""
        if self._delivering:
            return  # the handler resumed from inside of a delivery: the loop below goes on
        self._delivering = True
        try:
            while not self.paused and self._deliver_one():
                pass
        finally:
            self._delivering = False
        if self._start >= self._end:
            self.release()

    def release(self) -> None:
        """Give the chunk back, and forget what was not delivered."""
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            self._pool.give(chunk, self._end)
        self._start = self._end = 0
        self._needed = FRAME_PREFIX_SIZE

    def trim(self) -> None:
        """Hold little more memory than what is received and not delivered needs; costs little however often."""
        if self._start >= self._end:
            self.release()
        elif self._chunk is not None and self._chunk.size > _TRIMMED * self.pending_bytes:
            self.compact()

    def compact(self) -> None:
        """Move half a frame into memory of its own size. For a peer that sent a part and then nothing."""
        if self._chunk is not None and self._chunk.size > self.pending_bytes:
            self._move_to(self._pool.take_exactly(max(self.pending_bytes, 1)))

    def _move_to(self, target: Chunk) -> Chunk:
        source = self._chunk
        assert source is not None
        assert source.view is not None
        assert target.view is not None
        start, size = target.used, self.pending_bytes
        target.view[start : start + size] = source.view[self._start : self._end]
        self._pool.give(source, self._start)
        self._chunk, self._start, self._end = target, start, start + size
        return target

    def _deliver_one(self) -> bool:
        """Deliver the frame at the front, if it is whole."""
        chunk, start = self._chunk, self._start
        if chunk is None or self._end - start < FRAME_PREFIX_SIZE:
            self._needed = FRAME_PREFIX_SIZE
            return False
        if self.recognise is not None:
            recognise, self.recognise = self.recognise, None
            self._speaker = recognise(bytes(chunk.memory[start : start + FRAME_PREFIX_SIZE]))
        if self._speaker is not None:
            return self._deliver_to(self._speaker, chunk)
        length, kind, header_size = _PREFIX.unpack_from(chunk.memory, start)
        total = length + _LENGTH_SIZE
        command = self._check_prefix(total, kind, header_size)
        padded = total + (-total & 7)
        if self._end - start < padded:
            self._needed = padded
            return False
        self._start = start + padded
        assert chunk.view is not None
        header_at, self.header_size = start + FRAME_PREFIX_SIZE, header_size
        header = decode(command, chunk.view[header_at : header_at + header_size])
        payload_at = header_at + header_size + (-(FRAME_PREFIX_SIZE + header_size) & 7)
        payload = chunk.view[payload_at : start + total] if payload_at < start + total else _EMPTY
        self._deliver(header, payload)
        return True

    def _deliver_to(self, speaker: Speaker, chunk: Chunk) -> bool:
        assert chunk.view is not None
        start = self._start
        size = speaker.frame_size(chunk.view[start : self._end])
        if self._end - start < size:
            self._needed = size
            return False
        self._start, self.header_size = start + size, size
        speaker.frame_received(chunk.view[start : start + size])
        return True

    def _check_prefix(self, total: int, kind: int, header_size: int) -> Command:
        if total > self.frame_size_max:
            stranger = _HTTP.get((total - _LENGTH_SIZE).to_bytes(_LENGTH_SIZE, "little"))
            raise ProtocolError(stranger or f"a frame of {total} bytes; at most {self.frame_size_max} are allowed")
        command = _COMMANDS[kind]
        if command is None:
            raise ProtocolError(f"a frame of the unknown type {kind}")
        if header_size > FRAME_HEADER_SIZE_MAX or header_size + FRAME_PREFIX_SIZE > total:
            raise ProtocolError(f"{command.name}: a header of {header_size} bytes in a frame of {total}")
        return command
