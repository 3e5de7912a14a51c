"""The broker's state as Prometheus text, pulled from plain counters when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from engine.control.stats import ControlStatistics
from engine.model.names import TopicName
from engine.model.reshape import KINDS

if TYPE_CHECKING:
    from engine.broker.server import Broker
    from engine.broker.subscriptions import HostedSubscription
    from engine.broker.topics import HostedSegment

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]
Family = tuple[str, str, str, Iterable[Sample]]  # name, kind, what it says, samples

# {name: (field of AutoScaleCounts, what it says)}
_AUTO_SCALE = {
    "auto_splits": ("splits", "Splits that the topic made by itself"),
    "auto_merges": ("merges", "Merges that the topic made by itself"),
    "auto_rebuckets": ("rebuckets", "Times the topic rebucketed segments by itself"),
    "auto_failures": ("failures", "Changes that the topic began by itself and that failed"),
    "split_suppressed_max_segments": ("suppressed_max_segments", "Splits held back by max_segments"),
    "merge_suppressed_max_depth": ("suppressed_max_depth", "Merges held back by max_dag_depth"),
}
# {name: (kind, field of Sharing, what it says)}
_SHARING = {
    "sharers": ("gauge", "sharers", "Consumers that share the segment by bucket"),
    "bucket_reassignments_total": ("counter", "reassignments", "Buckets that went from one sharer to another"),
    "withheld_buckets": ("gauge", "withheld", "Buckets that wait for the acknowledgements of an earlier owner"),
    "drain_mode": ("gauge", "drain", "1: a sealed segment is shared until it is drained"),
}


def metrics_text(broker: Broker) -> str:
    """Everything, in the text format 0.0.4."""
    lines: list[str] = []
    hosted = list(broker.hosting)
    for name, kind, text, samples in _families(broker, hosted):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(broker: Broker, hosted: list[HostedSegment]) -> Iterator[Family]:
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
    delayed = [(labels, float(s.delayed)) for labels, s in readers]
    sent = [(labels, float(s.out.messages)) for labels, s in readers]
    rates = [(labels, s.out.messages_per_s) for labels, s in readers]
    yield from _shapes(broker.service.statistics())
    yield "engine_segment_buckets", "gauge", "Entry buckets", [(_segment(h), len(h.spec.bucket_ends)) for h in hosted]
    yield "engine_segment_sealed", "gauge", "1: takes no messages", [(_segment(h), h.segment.sealed) for h in hosted]
    yield "engine_subscription_back_log", "gauge", "Messages not acknowledged", backlogs
    yield "engine_subscription_delayed", "gauge", "Messages that are withheld until their time", delayed
    yield "engine_subscription_out_messages_total", "counter", "Messages sent to consumers", sent
    yield "engine_subscription_rate_out", "gauge", "Messages per second sent", rates
    yield from _sharing(readers)


def _shapes(now: ControlStatistics) -> Iterator[Family]:
    """Of the topics that this broker leads; what it has changed is counted since it was started."""
    layouts = [(_topic(topic), layout) for topic, layout in now.led]
    active = [(labels, len(layout.active)) for labels, layout in layouts]
    sealed = [(labels, len(layout.segments) - len(layout.active)) for labels, layout in layouts]
    pending = [(labels, layout.change is not None) for labels, layout in layouts]
    yield "engine_scalable_topic_active_segments", "gauge", "Segments that take messages", active
    yield "engine_scalable_topic_sealed_segments", "gauge", "Segments kept for those who have to read them", sealed
    yield "engine_scalable_topic_change_pending", "gauge", "1: a split, merge or rebucket is under way", pending
    yield from _changes(now)
    yield from _scaling(now)


def _changes(now: ControlStatistics) -> Iterator[Family]:
    """Whoever made them; of topics that are led here also those that there were none of yet, for rates to begin."""
    counts = {(str(topic), kind, end): 0 for topic, _ in now.led for kind in KINDS for end in ("done", "undone")}
    counts |= now.reshapes
    for kind in sorted(KINDS):
        done = [(_topic(TopicName.parse(t)), n) for (t, k, end), n in counts.items() if (k, end) == (kind, "done")]
        yield f"engine_scalable_topic_{kind}s_total", "counter", f"Times a {kind} was made", done
    undone = [({**_topic(TopicName.parse(t)), "kind": k}, n) for (t, k, end), n in counts.items() if end == "undone"]
    yield "engine_scalable_topic_changes_undone_total", "counter", "Changes that failed and were undone", undone


def _scaling(now: ControlStatistics) -> Iterator[Family]:
    """What topics that are led here did by themselves (PIP-483)."""
    found = [(_topic(TopicName.parse(topic)), status) for topic, status in now.scaling.items()]
    enabled = [(labels, status.policy.enabled) for labels, status in found]
    yield "engine_scalable_topic_auto_scale_enabled", "gauge", "1: the topic changes its shape by itself", enabled
    for name, (field, text) in _AUTO_SCALE.items():
        counts = [(labels, getattr(status.counts, field)) for labels, status in found]
        yield f"engine_scalable_topic_{name}_total", "counter", text, counts


def _sharing(readers: list[tuple[dict[str, str], HostedSubscription]]) -> Iterator[Family]:
    """How stream consumers share segments by bucket (PIP-486)."""
    known = [(labels, subscription.sharing) for labels, subscription in readers]
    for name, (kind, field, text) in _SHARING.items():
        samples = [(labels, 0.0 if sharing is None else float(getattr(sharing, field))) for labels, sharing in known]
        yield f"engine_subscription_{name}", kind, text, samples


def _number(value: float) -> str:
    """All its digits: a counter that is rounded seems to stand still, and a rate made of it is wrong."""
    return str(int(value)) if value == int(value) else repr(value)


def _each(hosted: list[HostedSegment], field: str) -> list[Sample]:
    return [(_segment(h), getattr(h.incoming, field)) for h in hosted]


def _topic(topic: TopicName) -> dict[str, str]:
    return {"namespace": f"{topic.tenant}/{topic.namespace}", "topic": str(topic)}


def _segment(hosted: HostedSegment) -> dict[str, str]:
    return {**_topic(hosted.name.topic), "segment": str(hosted.name.segment_id)}


def _labels(labels: dict[str, str]) -> str:
    escaped = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}" if labels else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
