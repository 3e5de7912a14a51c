"""`EngineMessage`: what handlers see of a message, or of a batch, and how they settle it."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from faststream.message import StreamMessage

import engine

Raw = engine.Message[bytes] | tuple[engine.Message[bytes], ...]  # a tuple: a batch


def messages_of(raw: Raw) -> tuple[engine.Message[bytes], ...]:
    """The messages of what a handler is called with once."""
    return raw if isinstance(raw, tuple) else (raw,)


class Settler(Protocol):
    """Where a message came from, and is acknowledged."""

    async def ack(self, raw: Raw) -> None: ...

    async def nack(self, raw: Raw, delay: float | None, reason: str | BaseException | None) -> None: ...

    async def reject(self, raw: Raw, reason: str | BaseException | None) -> None: ...

    def redeliveries(self, raw: Raw) -> int: ...


class EngineMessage(StreamMessage[Any]):
    """A message, or a batch of them, with what FastStream decoded of it. The first settlement counts."""

    def __init__(self, *args: Any, settler: Settler | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settler = settler  # None: it came from no consumer, as in TestEngineBroker

    @property
    def topic(self) -> str:
        """The topic it came from; of a batch, its first message's."""
        return messages_of(self.raw_message)[0].topic

    @property
    def key(self) -> bytes | None:
        """Its key; of a batch, that of its first message."""
        return messages_of(self.raw_message)[0].key

    @property
    def redelivery_count(self) -> int:
        """How often it was delivered before: to the subscription, or, in a stream, to this handler."""
        return 0 if self._settler is None else self._settler.redeliveries(self.raw_message)

    async def ack(self) -> None:
        """Acknowledge it; durable when this returns. In a stream, also all before it that is settled."""
        if self.committed is None and self._settler is not None:
            await self._settler.ack(self.raw_message)
        await super().ack()

    async def nack(self, *, delay: float | None = None, reason: str | BaseException | None = None) -> None:
        """Have it delivered again after `delay` seconds, by default as the subscriber's `nack_backoff` says."""
        if self.committed is None and self._settler is not None:
            await self._settler.nack(self.raw_message, delay, reason or sys.exception())
        await super().nack()

    async def reject(self, *, reason: str | BaseException | None = None) -> None:
        """Publish it to the subscriber's dead-letter topic, if it has one, and acknowledge it."""
        if self.committed is None and self._settler is not None:
            await self._settler.reject(self.raw_message, reason or sys.exception())
        await super().reject()
