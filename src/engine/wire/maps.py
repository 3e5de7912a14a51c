"""Headers as maps: said, and heard, by what does not know the structs."""

from __future__ import annotations

from typing import Any

import msgpack

from engine.wire.commands import Command, Header, encode
from engine.wire.packing import PackedHeader
from engine.wire.stream import FrameStream, Payload

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def packed(command: Command, fields: Any) -> PackedHeader:
    """The header of a command with these fields, whatever they are; or with what is packed already."""
    return PackedHeader(command, fields if isinstance(fields, bytes) else _pack(fields))


def fields_of(header: Header) -> dict[str, Any]:
    """The fields of a header, as they are on the wire, and those that are left out."""
    defaults = {name: getattr(header, name) for name in header.__struct_fields__}
    return {**defaults, **msgpack.unpackb(encode(header))}


class MapStream:
    """A FrameStream, but for send()."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def send(self, command: Command, fields: Any, payload: Payload = b"") -> None:
        """Queue one frame."""
        self.stream.send(packed(command, fields), payload)
