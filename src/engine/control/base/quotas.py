"""How many topics, subscriptions and schemas there may be, where a limit says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine.model.limits import Limit
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.control.base.topic_records import ScalableTopicResources
    from engine.errors import LimitExceededError


class KnownLimits(Protocol):
    """The limits that are in effect."""

    def of_topic(self, topic: TopicName) -> dict[str, Limit]:
        """Those of a topic, by name."""

    def totals(self, topic: TopicName, name: str) -> list[Limit]:
        """The limits of a sum that this topic counts for."""

    def beyond(self, limit: str, resource: str, value: object, asked: str) -> LimitExceededError:
        """The error of an operation that is refused, which is counted."""


async def check_topics(resources: ScalableTopicResources, topic: TopicName) -> None:
    """Raise LimitExceededError unless the topic may be created. Brokers that create one each at once may pass it."""
    limits = resources.limits
    if limits is None:
        return
    for limit in limits.totals(topic, "total_topics"):
        count = len(await resources.topics_below(limit.origin))
        if count >= limit.value:
            raise limits.beyond("total_topics", limit.origin, limit.value, f"topic {count + 1}")


async def check_subscriptions(resources: ScalableTopicResources, topic: TopicName) -> None:
    """Raise LimitExceededError unless the topic may have one more subscription."""
    limits = resources.limits
    if limits is None:
        return
    if (own := limits.of_topic(topic).get("subscriptions_max")) is not None:
        count = len(await resources.subscription_keys(topic))
        if count >= own.value:
            raise limits.beyond("subscriptions_max", own.origin, own.value, f"subscription {count + 1}")
    for limit in limits.totals(topic, "total_subscriptions"):
        count = 0
        for one in await resources.topics_below(limit.origin):
            count += len(await resources.subscription_keys(one))
        if count >= limit.value:
            raise limits.beyond("total_subscriptions", limit.origin, limit.value, f"subscription {count + 1}")


def check_schemas(resources: ScalableTopicResources, topic: TopicName, count: int) -> None:
    """Raise LimitExceededError unless the topic may have so many versions of its schema."""
    limits = resources.limits
    if limits is None:
        return
    limit = limits.of_topic(topic).get("schemas_max")
    if limit is not None and count > limit.value:
        raise limits.beyond("schemas_max", limit.origin, limit.value, f"version {count} of the schema")
