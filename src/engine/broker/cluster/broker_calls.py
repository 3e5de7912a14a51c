"""`BrokerCalls`: what brokers ask of each other for a topic's leader or a segment's owner, and how they answer.

A request is tried here first and goes to the leader that the metadata name when this broker is not it. The leader may
change meanwhile: it answers NotOwnerError, which says that nothing was done, and the next one is asked. Nothing that
another broker sent is sent on to a third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.broker.cluster.membership import Membership
from engine.broker.cluster.ports import LeaderCalls
from engine.broker.cluster.routed_host import CALL_S_MAX
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import InvalidArgumentError, NotOwnerError, UnsupportedError
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionMetadata

_FORWARDS_MAX = 5
_FORWARD_AGAIN_S = 0.1


class BrokerCalls:
    """Loop thread only."""

    def __init__(
        self, members: Membership, service: ScalableTopicService, leading: LeaderCalls, metadata: MetadataStore
    ) -> None:
        self._members = members
        self._service = service
        self._leading = leading
        self._resources = ScalableTopicResources(metadata)

    async def at_leader(
        self, topic: TopicName, here: Callable[[], Awaitable[Any]], target: str, method: str, args: Mapping[str, Any]
    ) -> Any:
        """Run `here` if this broker leads the topic by now, else call the leader once.

        A lost connection leaves the outcome open: ConnectError or TimeoutError says so, and UnknownOutcomeError where
        the leader changed in the middle of the call. Only after NotOwnerError, which says that the topic is unchanged
        (or that repeating does no harm), is another broker asked.
        """
        for _ in range(_FORWARDS_MAX):
            leader = await self._resources.load_leader(topic)
            try:
                if leader is None or leader.url == self._members.brokers.url:
                    return await here()
                return await self._members.peers.call(leader.url, target, method, args, CALL_S_MAX)
            except NotOwnerError as e:
                error = e
            await asyncio.sleep(_FORWARD_AGAIN_S)
        raise error

    async def forward(self, topic: TopicName, method: str, arguments: dict[str, Any]) -> Any:
        """Run an operation of the topic's leader, wherever that is."""
        args = {"topic": str(topic), "arguments": arguments}
        return await self.at_leader(topic, lambda: self._leading.call(method, topic, arguments), "admin", method, args)

    async def ensure_subscription(
        self,
        topic: TopicName,
        subscription: str,
        position: InitialPosition,
        kind: SubscriptionKind,
        created_ms: int | None = None,
    ) -> SubscriptionMetadata:
        """The subscription, created by the topic's leader if it is missing. Raises as the service does."""

        async def here() -> SubscriptionMetadata:
            return await self._service.ensure_subscription(
                topic, subscription, initial_position=position, kind=kind, created_ms=created_ms
            )

        try:
            return await here()
        except NotOwnerError:
            if self._members.routed is None:
                raise
        args = {"topic": str(topic), "subscription": subscription, "position": str(position), "kind": str(kind)}
        found = await self.at_leader(topic, here, "service", "ensure_subscription", args)
        return found if isinstance(found, SubscriptionMetadata) else SubscriptionMetadata.from_json(found)

    async def answer(self, target: str, method: str, args: Mapping[str, Any]) -> Any:
        """Serve BROKER_CALL. Raises what the method raises, InvalidArgumentError.

        UnsupportedError: this broker shares its metadata store with no other.
        """
        routed = self._members.routed
        if routed is None:
            raise UnsupportedError("this broker shares its metadata store with no other, and takes no calls of brokers")
        try:
            if target == "segment":
                value = await routed.answer(method, args)
            elif target == "admin":
                value = await self._leading.call(method, TopicName.parse(args["topic"]), args["arguments"])
            elif target == "service" and method == "ensure_subscription":
                position, kind = InitialPosition.parse(args["position"]), SubscriptionKind.parse(args["kind"])
                facts = await self._service.ensure_subscription(
                    args["topic"], args["subscription"], initial_position=position, kind=kind
                )
                value = facts.to_json()
            else:
                raise InvalidArgumentError(f"a broker knows no call {target!r:.40} {method!r:.40}")
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{target} {method}: {e!r}") from e
        return value
