"""`Transactions`: this broker coordinates transactions, as every broker does (PIP-473).

Any broker begins and ends any transaction: all there is to know stands in the metadata store. Only looking for what
nobody ended, and for what nobody needs any more, is divided: the partitions of the ids are placed over the brokers that
live. Where two believe for a moment that one is theirs, compare-and-set lets one of them do it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from engine.broker.session.commit_behind import CommitBehind
from engine.control.policy.placement import place
from engine.control.transactions.coordinator import TransactionCoordinator
from engine.control.transactions.headers import TransactionView
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, NotFoundError
from engine.model.transactions import (
    MARK_BITS,
    PARTITIONS,
    TRANSACTION_OVER,
    TransactionOperation,
    TransactionState,
    parse_id,
)

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.broker.transactions.operations import Held
    from engine.control.base.brokers import Brokers
    from engine.control.base.ports import SegmentSpec
    from engine.control.service import ScalableTopicService

log = logging.getLogger(__name__)

Header = dict[str, Any]
COLLECT_EVERY = 10  # times the interval of looking at what is over time
_ACTIONS = {"commit": TransactionState.COMMITTED, "abort": TransactionState.ABORTED}


class Participant(Protocol):
    """What has segments, here or elsewhere, as the coordinator sees it."""

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        """Apply, durably, what was decided about the segment's writes, or a subscription's acknowledgements in it.

        The operation records of what was applied are gone when it returns. Raises NotFoundError when there is no such
        store, or no such cursor.
        """


class Participants:
    """Whom an operation concerns, by the topics' layouts as they are now."""

    def __init__(self, service: ScalableTopicService, host: Participant) -> None:
        self._service = service
        self._host = host

    async def settle(self, operation: TransactionOperation) -> None:
        """See TransactionCoordinator. Raises NotFoundError when what the operation was about is no more."""
        segment = operation.segment
        spec = await self._service.segment_spec(segment.topic, segment.segment_id)
        if spec.name != segment:
            raise NotFoundError(f"{segment} is not in the layout of its topic")
        await self._host.settle_transactions(spec, operation.subscription)


class Transactions:
    """Loop thread only. `interval`: seconds between two looks at what is over time."""

    def __init__(self, coordinator: TransactionCoordinator, brokers: Brokers, interval: float) -> None:
        self.coordinator = coordinator
        self._brokers = brokers
        self._interval = interval

    @property
    def partitions(self) -> list[int]:
        """Those that this broker sweeps, as far as it knows who lives."""
        url = self._brokers.url
        live = {*self._brokers.live, url}
        return [number for number in range(PARTITIONS) if place(f"transactions-{number}", live) == url]

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong in one look is said, and the next one comes all the same."""
        await asyncio.gather(
            self._again_and_again(self.abort_expired, self._interval),
            self._again_and_again(self.collect, COLLECT_EVERY * self._interval),  # may wait for owners of segments
        )

    async def _again_and_again(self, look: Callable[[], Awaitable[object]], interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self._safely(look)

    async def _safely(self, look: Callable[[], Awaitable[object]]) -> None:
        try:
            await look()
        except AlreadyClosedError as e:
            log.debug("transactions: %s", e)
        except EngineError as e:
            log.warning("a look at the transactions failed: %s", e)
        except Exception:
            log.exception("a look at the transactions failed")

    async def abort_expired(self) -> int:
        """Abort those whose time is over, of this broker's partitions; how many."""
        return sum([await self.coordinator.abort_expired(number) for number in self.partitions])

    async def collect(self) -> int:
        """Forget those that nobody needs any more, of this broker's partitions; how many."""
        return sum([await self.coordinator.collect(number) for number in self.partitions])


# -- what clients ask for ----------------------------------------------------------------------------------------------


def begin(connection: Connection, header: Header, payload: memoryview) -> None:
    """NEW_TXN."""
    connection.start(header["request_id"], _begin(connection, header))


async def _begin(connection: Connection, header: Header) -> dict[str, Any]:
    coordinator, timeout_s, name = connection.host.transactions.coordinator, header["timeout"], header.get("name")
    if (count := header.get("count")) is None:
        view = await coordinator.begin(timeout_s, name)
        left_s = timeout_s if name is None else coordinator.open.left_s(view)
        return {"id": view.id, **_standing(view, left_s)}
    if name is not None:
        raise InvalidArgumentError(f"count must be absent for a transaction of one name, got {count}")
    view, *more = await coordinator.begin_some(timeout_s, count)
    return {"id": view.id, **_standing(view, timeout_s), "more": [one.id for one in more]}


def end(connection: Connection, header: Header, payload: memoryview) -> None:
    """END_TXN."""
    number, request_id = parse_id(header["id"]), header["request_id"]
    held = None
    if header.get("sent") is not None:
        held = connection.host.hosting.operations.hold(number)  # records are written at the end of this turn
    if held is None:
        connection.start(request_id, _end(connection, number, header, None))
    else:
        connection.start(request_id, _end(connection, number, header, held), held.release)


async def _end(connection: Connection, number: int, header: Header, held: Held | None) -> dict[str, Any]:
    state, accepted = _wanted(header)
    coordinator = connection.host.transactions.coordinator
    try:
        if (sent := header.get("sent")) is None:
            view = await coordinator.end(number, state, accepted)
        else:
            behind = CommitBehind(connection, number, held, sent, accepted, header.get("mark"))
            if not await behind.ready():
                return {"state": str(TransactionState.OPEN)}
            view = await behind.commit()
    except TRANSACTION_OVER:
        connection.sends.forget(number)
        raise
    connection.sends.forget(number)
    return {"state": str(view.header.state)}


def _wanted(header: Header) -> tuple[TransactionState, list[str] | None]:
    """The state to end in, and the attempts that a commit accepts. Raises InvalidArgumentError."""
    state, accepted = _ACTIONS.get(header["action"]), header.get("accepted")
    if state is None:
        raise InvalidArgumentError(f"action must be one of {', '.join(_ACTIONS)}, got {header['action']!r:.80}")
    if state is not TransactionState.COMMITTED and (accepted is not None or header.get("sent") is not None):
        raise InvalidArgumentError("an abort must have neither accepted attempts nor a count of sends")
    if (mark := header.get("mark")) is not None and not 0 <= mark < 1 << MARK_BITS:
        raise InvalidArgumentError(f"mark must be an integer of {MARK_BITS} bits, got {mark}")
    return state, accepted


def state(connection: Connection, header: Header, payload: memoryview) -> None:
    """TXN_STATE."""
    connection.start(header["request_id"], _state(connection, header))


async def _state(connection: Connection, header: Header) -> dict[str, Any]:
    coordinator = connection.host.transactions.coordinator
    view = await coordinator.get(parse_id(header["id"]))
    return _standing(view, coordinator.open.left_s(view))


def _standing(view: TransactionView, left_s: float | None) -> dict[str, Any]:
    accepted = view.header.accepted
    return {
        "state": str(view.header.state),
        "left": left_s,
        "deadline_ms": view.header.timeout_ms,
        "accepted": None if accepted is None else list(accepted),
        "mark": view.header.mark,
    }
