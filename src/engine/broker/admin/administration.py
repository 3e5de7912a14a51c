"""`Administration`: the admin service, made when it is first asked for.

The table of operations takes long to load, and many programs that embed a broker ask nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from engine.broker.admin.service import AdminService
    from engine.broker.rights.audit import Audit
    from engine.model.admin_requests import Operation
    from engine.model.names import TopicName

R = TypeVar("R")


class Administration:
    """An AdminBackend, for this process itself. `leading`: the LeaderCalls of other brokers.

    `audit`: where what it changes is noted; None for no audit log. Requests over HTTP are noted with their principals.
    """

    def __init__(self, make: Callable[[], AdminService], audit: Callable[[], Audit | None]) -> None:
        self._make = make
        self._audit = audit
        self._made: AdminService | None = None
        self.leading = _Leading(self)

    @property
    def service(self) -> AdminService:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """See AdminService."""
        found = await self.service.call(operation, arguments)
        if operation.verb != "GET" and (audit := self._audit()) is not None:
            _note(audit, operation, arguments)
        return found

    async def prune_segment(self, topic: str | TopicName, segment_id: int) -> bool:
        """See AdminService."""
        return await self.service.prune_segment(topic, segment_id)

    async def delete_topic(self, topic: str | TopicName) -> None:
        """See AdminService."""
        await self.service.delete_topic(topic)

    async def close(self) -> None:
        """The broker closes what it consists of."""


def _note(audit: Audit, operation: Operation[Any], arguments: Mapping[str, Any]) -> None:
    from engine.broker.rights.principal import OWNER
    from engine.broker.rights.table import OPERATIONS
    from engine.model.rights import names_of

    need = OPERATIONS[operation.name](arguments)
    audit.note(OWNER, None, operation.name, names_of(need.rights), need.resource, allowed=True)


class _Leading:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def call(self, method: str, topic: TopicName, arguments: Mapping[str, Any]) -> Any:
        """See LeaderAdmin."""
        return await self._administration.service.leading.call(method, topic, arguments)
