"""FastStream's metrics of handlers and publishers: `middlewares=[EnginePrometheusMiddleware(registry=…)]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from faststream._internal.constants import EMPTY
from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from prometheus_client import CollectorRegistry

from faststream_engine.message import messages_of
from faststream_engine.response import EnginePublishCommand

__all__ = ("EnginePrometheusMiddleware",)


class EngineMetricsSettingsProvider(MetricsSettingsProvider[Any, EnginePublishCommand]):
    """What its metrics say of a message, or of a batch."""

    def __init__(self) -> None:
        self.messaging_system = "engine"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Topic, bytes of values, and number."""
        messages = messages_of(msg.raw_message)
        return {
            "destination_name": messages[0].topic,
            "message_size": sum(len(message.value) for message in messages),
            "messages_count": len(messages),
        }

    def get_publish_destination_name_from_cmd(self, cmd: EnginePublishCommand) -> str:
        """The topic."""
        return cmd.destination


class EnginePrometheusMiddleware(PrometheusMiddleware[Any, EnginePublishCommand]):
    """Counts and times handlers and publishers. The options are those of FastStream's PrometheusMiddleware."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: EngineMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
