"""The labels of samples: the names of topics and segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment


def topic_labels(topic: TopicName) -> dict[str, str]:
    return {"namespace": f"{topic.tenant}/{topic.namespace}", "topic": str(topic)}


def segment_labels(hosted: HostedSegment) -> dict[str, str]:
    return {**topic_labels(hosted.name.topic), "segment": str(hosted.name.segment_id)}


def subscription_labels(hosted: HostedSegment, subscription: HostedSubscription) -> dict[str, str]:
    return {**segment_labels(hosted), "subscription": subscription.name}
