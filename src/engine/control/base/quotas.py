"""How many topics, subscriptions, groups and schemas there may be, where a limit says so."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from engine.model.limits import Limit
from engine.model.names import TopicName
from engine.model.policies import TopicPolicies

if TYPE_CHECKING:
    from engine.control.base.topic_records import ScalableTopicResources
    from engine.errors import LimitExceededError


class KnownLimits(Protocol):
    """The limits that are in effect, of the tenants that were asked for."""

    def of_topic(self, topic: TopicName) -> dict[str, Limit]:
        """Those of a topic, by name."""

    def totals(self, topic: TopicName, name: str) -> list[Limit]:
        """The limits of a sum that this topic counts for."""

    def of_messages(self, tenant: str) -> TopicPolicies:
        """What the tenant, or else the cluster, says of how long messages live and are kept."""

    def with_policies(self, topic: TopicName, own: TopicPolicies, namespace: TopicPolicies) -> dict[str, Limit]:
        """Likewise of a topic, where the policies of the topic or its namespace say nothing; with the origin."""

    def beyond(self, limit: str, resource: str, value: object, asked: str) -> LimitExceededError:
        """The error of an operation that is refused, which is counted."""


# The limits of a tenant with those above it, once they are known; None: there are none. Raises TimeoutError.
LimitsOf = Callable[[str], Coroutine[Any, Any, "KnownLimits | None"]]


async def check_topics(limits: KnownLimits, resources: ScalableTopicResources, topic: TopicName) -> None:
    """Raise LimitExceededError unless the topic may be created. Brokers that create one each at once may pass it."""
    for limit in limits.totals(topic, "total_topics"):
        count = len(await resources.topics_below(limit.origin))
        if count >= limit.value:
            raise limits.beyond("total_topics", limit.origin, limit.value, f"topic {count + 1}")


async def check_subscriptions(limits: KnownLimits, resources: ScalableTopicResources, topic: TopicName) -> None:
    """Raise LimitExceededError unless the topic may have one more subscription."""
    own, sums = limits.of_topic(topic).get("subscriptions_max"), limits.totals(topic, "total_subscriptions")
    if own is not None:
        count = len(await resources.subscription_keys(topic))
        if count >= own.value:
            raise limits.beyond("subscriptions_max", own.origin, own.value, f"subscription {count + 1}")
    for limit in sums:
        count = 0
        for one in await resources.topics_below(limit.origin):
            count += len(await resources.subscription_keys(one))
        if count >= limit.value:
            raise limits.beyond("total_subscriptions", limit.origin, limit.value, f"subscription {count + 1}")


def check_groups(limits: KnownLimits, topic: TopicName, count: int) -> None:
    """Raise LimitExceededError unless the topic may have so many checkpoint groups with members."""
    _check_count(limits, topic, "checkpoint_groups_max", count, f"group {count}")


def check_schemas(limits: KnownLimits, topic: TopicName, count: int) -> None:
    """Raise LimitExceededError unless the topic may have so many versions of its schema."""
    _check_count(limits, topic, "schemas_max", count, f"version {count} of the schema")


def _check_count(limits: KnownLimits, topic: TopicName, name: str, count: int, asked: str) -> None:
    limit = limits.of_topic(topic).get(name)
    if limit is not None and count > limit.value:
        raise limits.beyond(name, limit.origin, limit.value, asked)
