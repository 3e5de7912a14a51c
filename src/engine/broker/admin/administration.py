"""`Administration`: the admin service, made when it is first asked for.

The table of operations takes long to load, and many programs that embed a broker ask nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import InvalidArgumentError

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
        audit = None if operation.verb == "GET" else self._audit()
        if audit is None:
            return await self.service.call(operation, arguments)
        error: str | None = None
        try:
            return await self.service.call(operation, arguments)
        except BaseException as e:
            error = type(e).__name__
            raise
        finally:
            _note(audit, operation, arguments, error)

    async def prune_segment(self, topic: str | TopicName, segment_id: int) -> bool:
        """See AdminService."""
        return await self.service.prune_segment(topic, segment_id)

    async def delete_topic(self, topic: str | TopicName) -> None:
        """See AdminService."""
        await self.service.delete_topic(topic)

    async def close(self) -> None:
        """The broker closes what it consists of."""


def _note(audit: Audit, operation: Operation[Any], arguments: Mapping[str, Any], error: str | None) -> None:
    from engine.broker.rights.need import Need
    from engine.broker.rights.principal import OWNER
    from engine.broker.rights.table import OPERATIONS

    try:
        need = OPERATIONS[operation.name](arguments)
    except InvalidArgumentError:  # what it names cannot be
        need = Need(0)
    audit.note_need(OWNER, None, operation.name, need, allowed=True, error=error)


class _Leading:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def call(self, method: str, topic: TopicName, arguments: Mapping[str, Any]) -> Any:
        """See LeaderAdmin."""
        return await self._administration.service.leading.call(method, topic, arguments)
