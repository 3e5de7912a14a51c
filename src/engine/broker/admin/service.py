"""`AdminService`: executes admin operations, here or at a topic's leader; `rest.py` serves it over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from engine.broker.admin.cluster_admin import ClusterAdmin
from engine.broker.admin.dynamic import DynamicConfig
from engine.broker.admin.leader import LeaderAdmin
from engine.broker.admin.local import LocalAdmin
from engine.broker.admin.transaction_admin import TransactionAdmin
from engine.broker.limits.records import LimitRecords
from engine.broker.rights.records import RightsRecords
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.backups import Backups
from engine.control.service import ScalableTopicService
from engine.errors import ConnectError, NotOwnerError, TimeoutError
from engine.model.admin_methods import AdminMethods
from engine.model.admin_operations import SEEK_SUBSCRIPTION
from engine.model.admin_requests import Leader, Operation
from engine.model.checks import milliseconds
from engine.model.names import SegmentName, TopicName

R = TypeVar("R")
Forward = Callable[[TopicName, str, dict[str, Any]], Awaitable[Any]]


class AdminService(AdminMethods):
    """An AdminBackend.

    An operation of a topic's leader is tried here first: this broker becomes leader when no other broker is. If another
    one leads, `forward(topic, method, arguments)` calls the method of its LeaderAdmin there, once; without `forward`
    NotOwnerError is raised. All other operations are LocalAdmin's.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        config: BrokerConfig,
        forward: Forward | None = None,
        *,
        dynamic: DynamicConfig | None = None,
        transactions: TransactionAdmin | None = None,
        cluster: ClusterAdmin | None = None,
        metrics: Callable[[], Awaitable[str]] | None = None,
        rights: RightsRecords | None = None,
        limits: LimitRecords | None = None,
        backups: Backups | None = None,
    ) -> None:
        self.leading = LeaderAdmin(service)
        self.local = LocalAdmin(
            service,
            config,
            dynamic=dynamic,
            transactions=transactions,
            cluster=cluster,
            metrics=metrics,
            rights=rights,
            limits=limits,
            backups=backups,
        )
        self._forward = forward

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """Execute it. Only the types of its arguments are checked before. Raises InvalidArgumentError."""
        found: R
        if operation.leader is Leader.ANY:
            found = await getattr(self.local, operation.name)(**arguments)
        else:
            topic, others = _topic_of(arguments)
            ask = self._lead if operation.leader is Leader.NEEDED else self._prefer_leader
            found = await ask(operation.leader_method, topic, {**others, **operation.leader_arguments})
        return found

    async def _call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        return await self.call(operation, arguments)

    async def _lead(self, method: str, topic: TopicName, arguments: dict[str, Any]) -> Any:
        """Execute at the topic's leader: this broker, or another."""
        try:
            return await self.leading.call(method, topic, arguments)
        except NotOwnerError:
            if self._forward is None:
                raise
        return await self._forward(topic, method, arguments)

    async def _prefer_leader(self, method: str, topic: TopicName, arguments: dict[str, Any]) -> Any:
        """Execute at the topic's leader if one answers, or else here."""
        if self._forward is not None:
            with suppress(ConnectError, TimeoutError, NotOwnerError):
                return await self._forward(topic, method, arguments)
        return await self.leading.call(method, topic, arguments)

    async def prune_segment(self, topic: str | TopicName, segment_id: int) -> bool:
        """Delete an expired sealed segment from the topic; False: not now. Raises NotFoundError (topic)."""
        return bool(await self._lead("prune_segment", TopicName.parse(topic), {"segment_id": segment_id}))

    async def seek_subscription(self, topic: str, subscription: str, when: str | int | datetime) -> None:
        """The operation, accepting milliseconds as well."""
        instant = milliseconds(when) if isinstance(when, datetime) else when
        await self.call(SEEK_SUBSCRIPTION, {"topic": topic, "subscription": subscription, "when": instant})

    async def close(self) -> None:
        pass


def _topic_of(arguments: Mapping[str, Any]) -> tuple[TopicName, dict[str, Any]]:
    """The operation's topic, and the arguments for its leader."""
    others = dict(arguments)
    if "topic" in others:
        return TopicName.parse(others.pop("topic")), others
    return SegmentName.parse(others["segment"]).topic, others
