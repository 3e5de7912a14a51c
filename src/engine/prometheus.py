"""`Collector`: the metrics of an embedded engine, or of a server, in a program's own registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as Base

from engine.errors import EngineError

if TYPE_CHECKING:
    from prometheus_client import Metric

    from engine.sync import Client

PROCESS = ("process_", "python_")  # the registry's own collectors say these of the program


class Collector(Base):
    """`REGISTRY.register(Collector(e))`: `e`: what engine.open() or engine.Client() gave.

    They are asked for at each scrape. A server that does not answer has no metrics then, and `engine_up` is 0.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def describe(self) -> list[Metric]:
        """Nothing is asked for when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of metrics. See docs/metrics.md."""
        from prometheus_client.core import GaugeMetricFamily

        try:
            text = self._client.admin.get_metrics()
        except EngineError:
            text = ""
        yield GaugeMetricFamily("engine_up", "Whether the broker has answered", 1.0 if text else 0.0)
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(PROCESS):
                yield family
