"""`TransactionAdmin`: open transactions, their participants, and aborting them, for operators.

Reads the metadata store only, so any broker answers for all transactions.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from engine.broker.settings.checks import SECONDS_MAX
from engine.broker.transactions.operations import Operations
from engine.control.transactions.headers import TransactionView
from engine.control.transactions.operations import RecordedOperation
from engine.errors import InvalidArgumentError
from engine.model.admin_operations import LIST_DEFAULT, LIST_MAX
from engine.model.names import SegmentName
from engine.model.transactions import TransactionState, parse_id, partition_of

if TYPE_CHECKING:
    from engine.control.transactions.coordinator import TransactionCoordinator


class TransactionAdmin:
    """Lists, describes and aborts transactions."""

    def __init__(self, coordinator: TransactionCoordinator, operations: Operations) -> None:
        self._coordinator = coordinator
        self._operations = operations

    async def list_open(
        self, open_longer_than: float | None = None, segment: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Open ones, the oldest first: at least so many seconds old; with operations in a segment, "segment://…".

        Raises InvalidArgumentError.
        """
        count = _limit(limit)
        at_least_s, ages = _seconds(open_longer_than), self._coordinator.open
        found = await self._open_in(SegmentName.parse(segment)) if segment is not None else None
        if found is None:
            found = [view async for view in self._coordinator.every_open()]
        old = {view.number: view for view in found if ages.open_s(view) >= at_least_s}
        oldest = heapq.nsmallest(count, old.values(), key=lambda view: (ages.born_ms(view), view.number))
        return [self._facts(view) for view in oldest]

    async def _open_in(self, segment: SegmentName) -> list[TransactionView]:
        numbers = {operation.number for operation in await self._operations.of_segment(segment)}
        found = [await self._coordinator.find(number) for number in numbers]
        return [view for view in found if view is not None and view.header.state is TransactionState.OPEN]

    async def get(self, ident: str) -> dict[str, Any]:
        """One, ended or not, and where it has operations that are not applied yet. Raises TransactionNotFoundError."""
        number = parse_id(ident)
        view = await self._coordinator.get(number)
        return {**self._facts(view), "operations": _summed(await self._operations.of(number))}

    async def abort(self, ident: str) -> None:
        """Abort it. Raises TransactionNotFoundError, TransactionConflictError when it was committed."""
        await self._coordinator.end(parse_id(ident), TransactionState.ABORTED)

    def _facts(self, view: TransactionView) -> dict[str, Any]:
        header, open_ones = view.header, self._coordinator.open
        left_s = None if header.state.final else open_ones.left_s(view)
        return {
            "id": view.id,
            "name": header.name,
            "state": str(header.state),
            "partition": partition_of(view.number),
            "createdAtMs": header.created_ms,
            "deadlineMs": header.timeout_ms,
            "openForMs": None if header.state.final else round(open_ones.open_s(view) * 1000),  # null: it has ended
            "abortedInMs": None if left_s is None else round(left_s * 1000),  # null also where it cannot be told
            "finalizedAtMs": header.finalized_ms,  # null while it is open
            "acceptedAttempts": None if header.accepted is None else len(header.accepted),  # null: all of them
        }


def _summed(operations: list[RecordedOperation]) -> list[dict[str, Any]]:
    """How many records and messages, by what they are about."""
    sums: dict[tuple[str, str, str | None], list[int]] = {}
    for facts in (operation.facts for operation in operations):
        counts = sums.setdefault((str(facts.segment), str(facts.kind), facts.subscription), [0, 0])
        counts[0] += 1
        counts[1] += sum(last + 1 - first for first, last in facts.ranges)
    return [
        {"segment": segment, "kind": kind, "subscription": subscription, "records": records, "messages": messages}
        for (segment, kind, subscription), (records, messages) in sorted(sums.items(), key=lambda pair: str(pair[0]))
    ]


def _seconds(value: float | None) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= SECONDS_MAX:
        raise InvalidArgumentError(f"open_longer_than must be seconds from 0 to {SECONDS_MAX:g}, got {value!r:.80}")
    return float(value)


def _limit(value: int | None) -> int:
    if value is None:
        return LIST_DEFAULT
    if type(value) is not int or not 1 <= value <= LIST_MAX:
        raise InvalidArgumentError(f"limit must be an int from 1 to {LIST_MAX}, got {value!r:.80}")
    return value
