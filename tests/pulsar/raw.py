"""`Raw`: a socket that speaks Apache Pulsar's protocol by hand."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from engine.pulsar.messages import FIELDS, Command, MessageMetadata, command, framed
from tests.reference.pulsar_reference import PulsarMessage, numbered, payload_of

CONNECT = framed("connect", client_version="test", protocol=19)


class Raw:
    """A socket that speaks the protocol by hand."""

    def __init__(self, served: Any, tls: ssl.SSLContext | None = None) -> None:
        self._port = int(served.service_url.rpartition(":")[2])
        self._tls = tls
        # Of the MESSAGEs that came: how many messages each has, and for which consumer.
        self.counts: list[int] = []
        self.consumers: list[int] = []
        self.payloads: list[bytes] = []  # behind their checksum

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def say(self, *frames: bytes) -> None:
        self.writer.writelines(frames)
        await self.writer.drain()

    async def say_command(self, name: str, /, **fields: Any) -> None:
        await self.say(framed(name, **fields))

    async def hear(self) -> tuple[str, Any] | None:
        """The next command; None: the connection has ended."""
        async with asyncio.timeout(20):
            try:
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                frame = await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        end = 4 + int.from_bytes(frame[:4], "big")
        found = Command.FromString(frame[4:end])
        name = FIELDS[found.type]
        if name == "message":
            self._count(found.message.consumer, frame[end:])
        return name, getattr(found, name)

    def _count(self, consumer: int, payload: bytes) -> None:
        size = int.from_bytes(payload[6:10], "big")
        metadata = MessageMetadata.FromString(payload[10 : 10 + size])
        self.counts.append(metadata.count if metadata.HasField("count") else 1)
        self.consumers.append(consumer)
        self.payloads.append(payload[6:])

    async def heard(self, wanted: str) -> Any:
        """The next command of that name; others are passed, but for errors."""
        while (heard := await self.hear()) is not None:
            name, found = heard
            if name == wanted:
                return found
            if name == "ping":
                await self.say_command("pong")
            assert name not in ("error", "send_error"), found
        raise AssertionError(f"the connection has ended before {wanted}")

    async def ends(self) -> list[str]:
        """The errors that come before the end of the connection."""
        errors = []
        while (heard := await self.hear()) is not None:
            if heard[0] == "error":
                errors.append(heard[1].message)
        return errors


async def greeted(raw: Raw, client: str = "test") -> None:
    await raw.say_command("connect", client_version=client, protocol=19)
    heard = await raw.hear()
    assert heard is not None
    assert heard[0] == "connected"
    assert heard[1].max_message_size == 5 << 20


def framed_payload(producer: int, payload: bytes, **fields: Any) -> bytes:
    """The frame of a SEND of this payload."""
    head = command("send", producer=producer, **fields)
    size = 4 + len(head) + len(payload)
    return b"".join((size.to_bytes(4, "big"), len(head).to_bytes(4, "big"), head, payload))


def framed_send(
    producer: int,
    messages: list[PulsarMessage],
    sequence: int = 0,
    schema_version: bytes | None = None,
    **fields: Any,
) -> bytes:
    """The frame of a SEND. Messages without a sequence id are given theirs, counted from `sequence`."""
    payload = payload_of(numbered(messages, sequence), sequence=sequence, schema_version=schema_version)
    return framed_payload(producer, payload, sequence=sequence, count=len(messages), **fields)
