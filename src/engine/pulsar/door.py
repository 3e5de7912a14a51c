"""Apache Pulsar's clients are recognised by their first bytes, and served where `engine[pulsar]` is installed.

    Apache Pulsar's    total u32 big-endian | size of the command u32 big-endian | a command …
    ours               length u32 little-endian | command u8 (never 0) | …

The fifth byte tells them apart: of theirs it is the highest of a size far below 16 MiB, so 0.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from engine.errors import ProtocolError

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.pulsar.groups import Groups
    from engine.pulsar.interleaved import Remembered
    from engine.wire.stream import Buffer, FrameHandler, FrameStream, Payload, Sent, Speaker

log = logging.getLogger(__name__)

_COMMAND_AT = 4  # the byte that tells the protocols apart
_FIRST_SIZE_MAX = 1 << 20  # of the first frame: a token may be long
_MISSING = "this broker does not speak Apache Pulsar's protocol: install engine[pulsar] where it runs"
_ERROR, _UNSUPPORTED_VERSION = 14, 10


class Door:
    """One broker's. Nothing but this module is loaded before the first client of Apache Pulsar comes."""

    def __init__(self) -> None:
        self._shared: tuple[Groups, Remembered] | None = None  # by all connections

    def recognise(self, first: bytes, stream: FrameStream, handler: FrameHandler) -> Speaker | None:
        """The speaker for a connection that begins with these bytes; None: they are not Apache Pulsar's."""
        total, command = int.from_bytes(first[:4], "big"), int.from_bytes(first[4:8], "big")
        if first[_COMMAND_AT] or not 0 < command <= total - 4 < _FIRST_SIZE_MAX:
            return None
        connection = cast("Connection", handler)
        try:
            from engine.pulsar.groups import Groups
            from engine.pulsar.interleaved import Remembered
            from engine.pulsar.session import Session
        except ModuleNotFoundError as e:
            if (e.name or "").split(".")[0] != "google":
                raise
            log.warning("a client of Apache Pulsar at %s is refused: %s", stream.peer, _MISSING)
            return _Missing(connection)
        if self._shared is None:
            self._shared = Groups(), Remembered()
        return Session(stream, connection, *self._shared)


class _Missing:
    """Answers the first frame with the reason why it is not served."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def frame_size(self, head: memoryview) -> int:
        return 4 + int.from_bytes(head[:4], "big")

    def frame_received(self, frame: memoryview) -> None:
        self._connection.fail(ProtocolError(_MISSING))

    def encode(self, header: Sent, payload: Payload) -> tuple[list[Buffer], int]:
        """An error for the request number -1, whatever is to be said, in the bytes that `protobuf` would make."""
        text = _MISSING.encode()
        error = b"\x08" + b"\xff" * 9 + b"\x01" + bytes([0x10, _UNSUPPORTED_VERSION, 0x1A, len(text)]) + text
        body = bytes([0x08, _ERROR, _ERROR << 3 | 2]) + _varint(len(error)) + error
        made = (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        return [made], len(made)

    def connection_lost(self) -> None:
        """Nothing is held."""


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
