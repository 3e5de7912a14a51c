"""The labels of samples: the names of topics and segments."""

from __future__ import annotations

from engine.model.names import SegmentName, TopicName


def topic_labels(topic: TopicName) -> dict[str, str]:
    return {"namespace": f"{topic.tenant}/{topic.namespace}", "topic": str(topic)}


def segment_labels(name: SegmentName) -> dict[str, str]:
    return {**topic_labels(name.topic), "segment": str(name.segment_id)}


def subscription_labels(name: SegmentName, subscription: str) -> dict[str, str]:
    return {**segment_labels(name), "subscription": subscription}
