"""`Membership`: one broker among others: who lives, who owns what, and calls that go to whom they concern."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.broker.cluster.peers import Peers
from engine.broker.cluster.routed_host import CALL_S_MAX, RoutedSegmentHost
from engine.broker.hosting.ownership import Ownership
from engine.broker.hosting.segment_host import SegmentHosting
from engine.clock import Clock
from engine.control.base.brokers import Brokers
from engine.control.base.ports import SegmentHost
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import InvalidArgumentError, NotOwnerError, UnsupportedError
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionMetadata
from engine.storage.store import SegmentStore
from engine.wire.stream import Connector
from engine.wire.tcp import TcpConnector

if TYPE_CHECKING:
    from engine.broker.admin.service import AdminService
    from engine.broker.session.transaction_requests import Participant

_FORWARDS_MAX = 5
_FORWARD_AGAIN_S = 0.1


class Membership:
    """Loop thread only. `shared`: other brokers may use the metadata store; else everything is local and direct."""

    def __init__(
        self,
        store: SegmentStore,
        metadata: MetadataStore,
        *,
        clock: Clock,
        url: str,
        admin_url: str | None,
        session_timeout: float,
        token: str | None,
        connector: Connector | None,
        shared: bool,
    ) -> None:
        self.brokers = Brokers(metadata, clock=clock, url=url, admin_url=admin_url, session_timeout=session_timeout)
        self.ownership = Ownership(metadata, self.brokers, clock, follows=shared)
        self.hosting = SegmentHosting(store, metadata, self.ownership)
        self.peers = Peers(connector or TcpConnector(), token)
        self._resources = ScalableTopicResources(metadata)
        self._routed = RoutedSegmentHost(self.hosting, self.ownership, self.peers) if shared else None
        self.brokers.lost += [self.ownership.session_lost, self.hosting.session_lost]

    @property
    def host(self) -> SegmentHost:
        """The segments of all brokers, for the control plane."""
        return self._routed or self.hosting

    @property
    def transactions(self) -> Participant:
        """The same, for the coordinator of transactions."""
        return self._routed or self.hosting

    async def start(self) -> None:
        """Become one of them. Raises what the metadata store raises."""
        self.ownership.start()
        await self.brokers.start()

    async def close_segments(self) -> None:
        """Write everything out and let go of it; others may have it when close() returns."""
        if self._routed is not None:
            await self._routed.close()
        await self.hosting.close()

    async def close(self) -> None:
        """Leave. Idempotent."""
        await self.peers.close()
        await self.brokers.close()
        await self.ownership.close()

    # -- calls to a topic's leader ---------------------------------------------------------------------------------

    async def at_leader(
        self, topic: TopicName, here: Callable[[], Awaitable[Any]], target: str, method: str, args: Mapping[str, Any]
    ) -> Any:
        """Have the topic's leader do something, which this broker is not, or was not a moment ago.

        It is asked once: a lost connection leaves the outcome open, and ConnectError or TimeoutError says so, as
        UnknownOutcomeError does where the leader has changed in the middle of it. Only who answers that he does not
        lead has not changed the topic's shape, or has done what may be done twice; another is asked.
        """
        for _ in range(_FORWARDS_MAX):
            leader = await self._resources.load_leader(topic)
            try:
                if leader is None or leader.url == self.brokers.url:
                    return await here()
                return await self.peers.call(leader.url, target, method, args, CALL_S_MAX)
            except NotOwnerError as e:
                error = e
            await asyncio.sleep(_FORWARD_AGAIN_S)
        raise error

    async def forward(self, admin: AdminService, topic: TopicName, method: str, arguments: dict[str, Any]) -> Any:
        """An admin request that only the leader can serve."""
        args = {"topic": str(topic), "arguments": arguments}
        return await self.at_leader(topic, lambda: admin.leading.call(method, topic, arguments), "admin", method, args)

    async def ensure_subscription(
        self,
        service: ScalableTopicService,
        topic: TopicName,
        subscription: str,
        position: InitialPosition,
        kind: SubscriptionKind,
        created_ms: int | None = None,
    ) -> SubscriptionMetadata:
        """The subscription; where it must be created, its leader does that. Raises as the service does."""

        async def here() -> SubscriptionMetadata:
            return await service.ensure_subscription(
                topic, subscription, initial_position=position, kind=kind, created_ms=created_ms
            )

        try:
            return await here()
        except NotOwnerError:
            if self._routed is None:
                raise
        args = {"topic": str(topic), "subscription": subscription, "position": str(position), "kind": str(kind)}
        found = await self.at_leader(topic, here, "service", "ensure_subscription", args)
        return found if isinstance(found, SubscriptionMetadata) else SubscriptionMetadata.from_json(found)

    # -- calls from another broker ---------------------------------------------------------------------------------

    async def answer(
        self, admin: AdminService, service: ScalableTopicService, target: str, method: str, args: Mapping[str, Any]
    ) -> Any:
        """BROKER_CALL. Nothing of it is sent on to a third. Raises what the method raises, InvalidArgumentError.

        UnsupportedError: this broker shares its store with nobody, so that nobody has to call it.
        """
        if self._routed is None:
            raise UnsupportedError("this broker shares its metadata store with no other, and takes no calls of brokers")
        try:
            if target == "segment":
                value = await self._routed.answer(method, args)
            elif target == "admin":
                value = await admin.leading.call(method, TopicName.parse(args["topic"]), args["arguments"])
            elif target == "service" and method == "ensure_subscription":
                position, kind = InitialPosition.parse(args["position"]), SubscriptionKind.parse(args["kind"])
                facts = await service.ensure_subscription(
                    args["topic"], args["subscription"], initial_position=position, kind=kind
                )
                value = facts.to_json()
            else:
                raise InvalidArgumentError(f"a broker knows no call {target!r:.40} {method!r:.40}")
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{target} {method}: {e!r}") from e
        return value
