"""The shape of the topics that this broker leads, and their automatic reshapes (PIP-468, PIP-483)."""

from __future__ import annotations

from collections.abc import Iterator

from engine.broker.metrics.exposition import Family, counter, gauge
from engine.broker.metrics.labels import topic_labels
from engine.control.topic.stats import ControlStatistics
from engine.model.names import TopicName
from engine.model.reshape import KINDS

# {name: (field of AutoScaleCounts, help text)}
_AUTO_SCALE = {
    "auto_splits": ("splits", "Automatic splits"),
    "auto_merges": ("merges", "Automatic merges"),
    "auto_rebuckets": ("rebuckets", "Automatic rebuckets"),
    "auto_failures": ("failures", "Automatic changes that failed"),
    "split_suppressed_max_segments": ("suppressed_max_segments", "Splits held back by max_segments"),
    "merge_suppressed_max_depth": ("suppressed_max_depth", "Merges held back by max_dag_depth"),
}


def shape_families(now: ControlStatistics) -> Iterator[Family]:
    """Of the topics that this broker leads; changes are counted since the broker started."""
    layouts = [(topic_labels(topic), layout) for topic, layout in now.led]
    active = [(labels, len(layout.active)) for labels, layout in layouts]
    sealed = [(labels, len(layout.segments) - len(layout.active)) for labels, layout in layouts]
    pending = [(labels, layout.change is not None) for labels, layout in layouts]
    yield gauge("scalable_topics_led", "Topics whose controller is here", len(layouts))
    yield gauge("scalable_topic_active_segments", "Segments that take messages", active)
    yield gauge(
        "scalable_topic_sealed_segments",
        "Sealed segments: not drained, or within their retention",
        sealed,
    )
    yield gauge("scalable_topic_change_pending", "1: a split, merge or rebucket is under way", pending)
    yield from _changes(now)
    yield from _scaling(now)


def _changes(now: ControlStatistics) -> Iterator[Family]:
    """Automatic and requested changes. Topics led here have a sample from 0 on, so that rates begin there."""
    counts = {(str(topic), kind, end): 0 for topic, _ in now.led for kind in KINDS for end in ("done", "undone")}
    counts |= now.reshapes
    for kind in sorted(KINDS):
        done = [
            (topic_labels(TopicName.parse(t)), n) for (t, k, end), n in counts.items() if (k, end) == (kind, "done")
        ]
        yield counter(f"scalable_topic_{kind}s_total", f"Completed {kind}s, automatic and requested", done)
    undone = [
        ({**topic_labels(TopicName.parse(t)), "kind": k}, n) for (t, k, end), n in counts.items() if end == "undone"
    ]
    yield counter("scalable_topic_changes_undone_total", "Changes that failed and were undone", undone)


def _scaling(now: ControlStatistics) -> Iterator[Family]:
    """Automatic changes of the topics led here (PIP-483)."""
    found = [(topic_labels(TopicName.parse(topic)), status) for topic, status in now.scaling.items()]
    enabled = [(labels, status.policy.enabled) for labels, status in found]
    yield gauge("scalable_topic_auto_scale_enabled", "1: the topic is scaled automatically", enabled)
    for name, (field, text) in _AUTO_SCALE.items():
        counts = [(labels, getattr(status.counts, field)) for labels, status in found]
        yield counter(f"scalable_topic_{name}_total", text, counts)
