"""`BrokerCalls`: calls between brokers, addressed to a topic's leader or a segment's owner.

A call runs locally first and is forwarded to the leader named by the metadata when this broker is not the leader. The
leader may change meanwhile: the callee then answers NotOwnerError, which means that nothing was done, and the call is
repeated at the new leader. A call received from another broker is never forwarded to a third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.broker.cluster.membership import Membership
from engine.broker.cluster.segment_calls import CALL_S_MAX
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import InvalidArgumentError, NotOwnerError, UnsupportedError
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionMetadata

if TYPE_CHECKING:
    from engine.broker.cluster.ports import ClusterCalls, LeaderCalls

_FORWARDS_MAX = 5
_FORWARD_AGAIN_S = 0.1


class BrokerCalls:
    """Sends and answers BROKER_CALL: operations of a topic's leader, of a segment's owner, and of a broker."""

    def __init__(
        self,
        members: Membership,
        service: ScalableTopicService,
        leading: LeaderCalls,
        cluster: ClusterCalls,
        metadata: MetadataStore,
    ) -> None:
        self._members = members
        self._service = service
        self._leading = leading
        self._cluster = cluster
        self._resources = ScalableTopicResources(metadata)

    async def at_leader(
        self, topic: TopicName, here: Callable[[], Awaitable[Any]], target: str, method: str, args: Mapping[str, Any]
    ) -> Any:
        """Run `here` if this broker leads the topic, else call the leader once.

        A lost connection leaves the outcome open: ConnectError or TimeoutError says so, and UnknownOutcomeError where
        the leader changed in the middle of the call. Another broker is called only after NotOwnerError, which means
        that the topic is unchanged (or that a repetition does no harm).
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
        """Run an operation at the topic's leader, local or remote."""
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

        UnsupportedError: this broker does not share its metadata store.
        """
        routed = self._members.routed
        if routed is None:
            raise UnsupportedError("BROKER_CALL needs a shared metadata store; this broker has its own")
        try:
            if target == "segment":
                value = await routed.answer(method, args)
            elif target == "broker":
                value = await self._cluster.answer(method, args)
            elif target == "admin":
                value = await self._leading.call(method, TopicName.parse(args["topic"]), args["arguments"])
            elif target == "service" and method == "ensure_subscription":
                position, kind = InitialPosition.parse(args["position"]), SubscriptionKind.parse(args["kind"])
                facts = await self._service.ensure_subscription(
                    args["topic"], args["subscription"], initial_position=position, kind=kind
                )
                value = facts.to_json()
            else:
                raise InvalidArgumentError(f"unknown broker call {target!r:.40} {method!r:.40}")
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{target} {method}: {e!r}") from e
        return value
