"""Decoders of frames, and frames to begin with."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from engine.proxy.frames import FrameCutter, Hello, field_of
from engine.testing.maps import encode_bytes
from engine.wire.chunks import ChunkPool
from engine.wire.commands import HEADERS, Command
from engine.wire.framing import FrameReader
from tests.fuzz.values import fields, of_type


def frames(data: bytes) -> list[Any]:
    """As they come over a connection, in two pieces."""
    found: list[Any] = []
    reader = FrameReader(ChunkPool(4096), lambda *frame: found.append(frame), frame_size_max=2**20)
    for piece in (data[: len(data) // 3], data[len(data) // 3 :]):
        while piece:
            room = reader.get_buffer()
            size = min(len(room), len(piece))
            room[:size] = piece[:size]
            room.release()
            reader.received(size)
            piece = piece[size:]
    return found


def cut(data: bytes) -> bytes:
    """The proxy's way: some types whole, everything else passed on; the first field of interest of the whole ones."""
    cutter, came = FrameCutter(lambda kind, size: kind % 2 == 0, 2**20), b""
    for piece in (data[:7], data[7 : len(data) // 2], data[max(7, len(data) // 2) :]):
        for kind, part in cutter.feed(piece):
            came += part
            if kind is not None:
                field_of(part, "request_id")
    assert data.startswith(came)
    return came


def greet(data: bytes) -> object:
    """The first frame of a connection, at the proxy."""
    hello = Hello()
    return hello.take() if hello.feed(data) else None


@cache
def frame_seeds() -> list[bytes]:
    """One of every command, with a payload and without."""
    rng = random.Random(1)
    found = []
    for command in Command:
        header = {name: of_type(rng, kind) for name, kind in fields(HEADERS[command])}
        try:
            found += [encode_bytes(command, header), encode_bytes(command, header, b"payload!" * 3)]
        except UnicodeEncodeError:
            found.append(encode_bytes(Command.PING, {}))
    return found
