"""Headers that are put together from parts which were packed before: what is told to many is packed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from engine.wire.commands import Command


class Packed(bytes):
    """One msgpack value."""

    __slots__ = ()


class PackedHeader(NamedTuple):
    """The header of a command, encoded."""

    command: Command
    packed: bytes


_packer = msgpack.Packer(use_bin_type=True, autoreset=True)


def pack(value: Any) -> Packed:
    """Any value of a header."""
    return Packed(_packer.pack(value))


def pack_map(fields: Mapping[str, Any]) -> Packed:
    """A map of which some values are packed already."""
    parts: list[bytes] = [_packer.pack_map_header(len(fields))]
    for name, value in fields.items():
        parts.append(_packer.pack(name))
        parts.append(value if isinstance(value, Packed) else _packer.pack(value))
    return Packed(b"".join(parts))


def unpack(value: bytes) -> Any:
    """What was packed."""
    return msgpack.unpackb(value)
