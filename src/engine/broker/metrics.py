"""The broker's state as Prometheus text, pulled from plain counters when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.broker.server import Broker
    from engine.broker.topics import HostedSegment

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


def metrics_text(broker: Broker) -> str:
    """Everything, in the text format 0.0.4."""
    lines: list[str] = []
    hosted = list(broker.hosting)
    for name, kind, text, samples in _families(broker, hosted):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(broker: Broker, hosted: list[HostedSegment]) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    producers = sum(len(h.producers) for h in hosted)
    consumers = sum(1 for h in hosted for _ in h.consumers)
    yield "engine_connections", "gauge", "Connections open now", [({}, len(broker.connections))]
    yield "engine_producers", "gauge", "Producers attached to segments", [({}, producers)]
    yield "engine_consumers", "gauge", "Consumers attached to segments", [({}, consumers)]
    yield "engine_segments_open", "gauge", "Segments open now", [({}, len(hosted))]
    yield "engine_publish_bytes_in_flight", "gauge", "Received, not durable yet", [({}, broker.memory.in_flight)]
    yield "engine_publish_bytes_limit", "gauge", "Above it nothing is received", [({}, broker.memory.limit)]
    yield "engine_in_messages_total", "counter", "Messages made durable", _each(hosted, "messages")
    yield "engine_in_bytes_total", "counter", "Bytes of entries made durable", _each(hosted, "bytes")
    yield "engine_rate_in", "gauge", "Messages per second published", _each(hosted, "messages_per_s")
    yield "engine_throughput_in", "gauge", "Bytes per second published", _each(hosted, "bytes_per_s")
    yield (
        "engine_storage_size",
        "gauge",
        "Bytes in the segment's files",
        [(_segment(h), h.segment.size_bytes) for h in hosted],
    )
    counted = {"commits": "Group commits", "syncs": "Syncs of log files", "sync_failures": "Failed syncs"}
    for what, text in counted.items():
        yield (
            f"engine_storage_{what}_total",
            "counter",
            text,
            [(_segment(h), getattr(h.segment.statistics(), what)) for h in hosted],
        )
    readers = [({**_segment(h), "subscription": s.name}, s) for h in hosted for s in h.subscriptions.values()]
    backlogs = [(labels, float(s.backlog)) for labels, s in readers]
    sent = [(labels, float(s.out.messages)) for labels, s in readers]
    rates = [(labels, s.out.messages_per_s) for labels, s in readers]
    yield "engine_subscription_back_log", "gauge", "Messages not acknowledged", backlogs
    yield "engine_subscription_out_messages_total", "counter", "Messages sent to consumers", sent
    yield "engine_subscription_rate_out", "gauge", "Messages per second sent", rates


def _number(value: float) -> str:
    """All its digits: a counter that is rounded seems to stand still, and a rate made of it is wrong."""
    return str(int(value)) if value == int(value) else repr(value)


def _each(hosted: list[HostedSegment], field: str) -> list[Sample]:
    return [(_segment(h), getattr(h.incoming, field)) for h in hosted]


def _segment(hosted: HostedSegment) -> dict[str, str]:
    topic = hosted.name.topic
    namespace = f"{topic.tenant}/{topic.namespace}"
    return {"namespace": namespace, "topic": str(topic), "segment": str(hosted.name.segment_id)}


def _labels(labels: dict[str, str]) -> str:
    escaped = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}" if labels else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
