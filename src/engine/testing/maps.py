"""Headers as maps: for tests, which write and check what is on the wire.

`over_maps` stands between a connection and a handler whose frames are (command, map of fields, payload), both ways.
Such a handler may say anything: what is malformed is refused at the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from engine.wire import commands, framing
from engine.wire.commands import Command, Header
from engine.wire.packing import PackedHeader
from engine.wire.stream import Buffer, FrameHandler, FrameStream, Payload

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def packed(command: Command, fields: Any) -> PackedHeader:
    """The header of a command with these fields, whatever they are; or with what is packed already."""
    return PackedHeader(command, fields if isinstance(fields, bytes) else _pack(fields))


def fields_of(header: Header) -> dict[str, Any]:
    """The fields of a header, as they are on the wire, and those that are left out."""
    defaults = {name: getattr(header, name) for name in header.__struct_fields__}
    return {**defaults, **msgpack.unpackb(commands.encode(header))}


class MapStream:
    """A FrameStream, but for send()."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def send(self, command: Command, fields: Any, payload: Payload = b"") -> None:
        """Queue one frame."""
        self.stream.send(packed(command, fields), payload)


class MapHandler(Protocol):
    """As a FrameHandler, but for the first method."""

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        """One whole, checked frame."""

    def pause_writing(self) -> None:
        """See FrameHandler."""

    def resume_writing(self) -> None:
        """See FrameHandler."""

    def connection_lost(self, error: Exception | None) -> None:
        """See FrameHandler."""


class _Translator:
    def __init__(self, handler: MapHandler) -> None:
        self._handler = handler

    def frame_received(self, header: Header, payload: memoryview) -> None:
        self._handler.frame_received(header.command, fields_of(header), payload)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._handler.connection_lost(error)


def over_maps(make: Callable[[Any], MapHandler]) -> Callable[[FrameStream], FrameHandler]:
    """What a Connector takes, of what makes such a handler: it is given a stream that sends maps."""
    return lambda stream: _Translator(make(MapStream(stream)))


def encode(command: Command, header: Any, payload: Payload = b"") -> tuple[list[Buffer], int]:
    """`framing.encode` of a map."""
    return framing.encode(packed(command, header), payload)


def encode_bytes(command: Command, header: Any, payload: Payload = b"") -> bytes:
    """`framing.encode_bytes` of a map."""
    return framing.encode_bytes(packed(command, header), payload)
