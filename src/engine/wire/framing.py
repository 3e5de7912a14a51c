"""How a frame becomes bytes and bytes become frames.

    0   length u32, bytes after this field up to the end of the payload
    4   type u8, a Command
    5   header length u32
    9   header, a msgpack map
    …   zeros up to the next multiple of 8
    …   payload
    …   zeros up to the next multiple of 8, not counted in length

Little-endian. Every frame and every payload starts on a multiple of 8, so that the columns of an entry can be read
in place. docs/formats/wire.md has the commands and the limits; `_native/wire/frames.pyx` cuts and joins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from engine._native.wire import frames
from engine.errors import ProtocolError
from engine.limits import FRAME_SIZE_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Command, Header, decode
from engine.wire.commands import encode as encode_header
from engine.wire.commands.codec import DECODERS, SOUND_IF
from engine.wire.packing import PackedHeader
from engine.wire.stream import Buffer, Payload, Sent

# What stands where a length should, and what its sender is.
_HTTP = {b"HTTP": "this port speaks HTTP; is it the admin API's? The service URL has the other port"} | dict.fromkeys(
    (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI"), "the peer speaks HTTP; the admin API has another port"
)
_DECODERS: tuple[Callable[[Any], Any] | None, ...] = tuple(
    DECODERS.get(cast(Command, kind))
    for kind in range(256)  # a Command is a number
)
_CHECKED = tuple(SOUND_IF.get(cast(Command, kind)) for kind in range(256))

Deliver = Callable[[Header, memoryview], None]


def payload_size(payload: Payload) -> int:
    """Bytes of a payload in either of its forms. Buffers must be contiguous and of single bytes."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return len(payload)
    return sum(map(len, payload))


def encode(header: Sent, payload: Payload = b"") -> tuple[list[Buffer], int]:
    """The frame as buffers to write one after the other, and their total size; a large payload is not copied.

    Raises InvalidArgumentError when it would be over the limits.
    """
    if type(header) is PackedHeader:
        return frames.frame(header.command, header.packed, payload)  # type: ignore[return-value]
    return frames.frame(header.command, encode_header(header), payload)  # type: ignore[return-value]


def encode_bytes(header: Sent, payload: Payload = b"") -> bytes:
    """The frame in one piece; for tests and tools."""
    return b"".join(encode(header, payload)[0])


def _refuse(kind: int | None, said: Any) -> None:
    """Raise what is wrong with a header; or with a frame that is too large, where its sender is known by the look."""
    if kind is not None:
        decode(Command(kind), said)
    elif said in _HTTP:
        raise ProtocolError(_HTTP[said])


class FrameReader(frames.FrameReader):
    """Cuts received bytes into frames: get_buffer() says where to receive to, received() delivers what is whole.

    `recognise` is asked with the first bytes whether they are of another protocol, whose frames a Speaker then gets.
    Owns a chunk of the pool only while it holds bytes that were not delivered yet. Loop thread only.
    """

    __slots__ = ()

    def __init__(self, pool: ChunkPool, deliver: Deliver, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        super().__init__(pool, deliver, _DECODERS, _CHECKED, _refuse, frame_size_max)
