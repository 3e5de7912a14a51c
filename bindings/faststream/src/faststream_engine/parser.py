"""Messages of the broker into messages of FastStream. What FastStream sends beside a body are properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faststream.message import StreamMessage, decode_message

from faststream_engine.message import EngineMessage, Raw, Settler, messages_of

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"


class EngineParser:
    """Parses messages and batches. `settler`: what settles them now; None where nothing does."""

    def __init__(self, settler: Callable[[], Settler | None] = lambda: None) -> None:
        self._settler = settler

    async def parse_message(self, raw: Any) -> EngineMessage:
        """One message."""
        return self._made(raw, raw.value, dict(raw.properties))

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """Its body, by its content type: text, JSON, or bytes."""
        return decode_message(message)

    async def parse_batch(self, raw: Any) -> EngineMessage:
        """A batch: its headers and its correlation id are those of its first message."""
        headers = [dict(each.properties) for each in raw]
        return self._made(raw, [each.value for each in raw], headers[0], batch_headers=headers)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """The bodies of its messages, each by its own content type."""
        return [decode_message(await self.parse_message(each)) for each in message.raw_message]

    def _made(self, raw: Raw, body: Any, headers: dict[str, str], **more: Any) -> EngineMessage:
        first, last = messages_of(raw)[0], messages_of(raw)[-1]
        name = f"{first.segment_id}:{first.offset}"
        return EngineMessage(
            raw,
            body,
            headers=headers,
            reply_to=headers.get(REPLY_TO, ""),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=name if first is last else f"{name}-{last.segment_id}:{last.offset}",
            settler=self._settler(),
            **more,
        )
