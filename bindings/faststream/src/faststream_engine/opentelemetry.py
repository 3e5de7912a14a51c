"""FastStream's spans of handlers and publishers: `middlewares=[EngineTelemetryMiddleware(tracer_provider=…)]`."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.semconv.trace import SpanAttributes
from opentelemetry.trace import TracerProvider

from faststream_engine.message import messages_of
from faststream_engine.response import EnginePublishCommand

__all__ = ("EngineTelemetryMiddleware",)


class EngineTelemetrySettingsProvider(TelemetrySettingsProvider[Any, EnginePublishCommand]):
    """What its spans say of a message, or of a batch."""

    def __init__(self) -> None:
        self.messaging_system = "engine"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """By the conventions of messaging."""
        messages = messages_of(msg.raw_message)
        found: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(len(message.value) for message in messages),
            MESSAGING_DESTINATION_PUBLISH_NAME: messages[0].topic,
        }
        if isinstance(msg.raw_message, tuple):
            found[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(messages)
        return found

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """The topic."""
        return messages_of(msg.raw_message)[0].topic

    def get_publish_attrs_from_cmd(self, cmd: EnginePublishCommand) -> dict[str, Any]:
        """By the conventions of messaging."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: EnginePublishCommand) -> str:
        """The topic."""
        return cmd.destination


class EngineTelemetryMiddleware(TelemetryMiddleware[EnginePublishCommand]):
    """One trace from the publisher through the handler to what it publishes."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: EngineTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
