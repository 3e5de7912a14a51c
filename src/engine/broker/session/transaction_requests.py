"""Transactions as clients ask for them: begin, end, and look up; every broker is a coordinator (PIP-473)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypedDict, cast

from engine.broker.rights.need import Need, on_topic
from engine.broker.session.commit_behind import CommitBehind
from engine.broker.upkeep.attendance import forget_ended
from engine.control.transactions.headers import TransactionView
from engine.errors import InvalidArgumentError, TransactionNotFoundError
from engine.model.rights import Right
from engine.model.transactions import (
    MARK_BITS,
    TRANSACTION_OVER,
    OperationKind,
    TransactionState,
    parse_id,
)
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.broker.transactions.operations import Held

log = logging.getLogger(__name__)

_ACTIONS = {"commit": TransactionState.COMMITTED, "abort": TransactionState.ABORTED}


def begin(connection: Connection, header: commands.NewTxn, payload: memoryview) -> None:
    """NEW_TXN."""
    connection.start(header.request_id, _begin(connection, header))


async def _begin(connection: Connection, header: commands.NewTxn) -> commands.Begun:
    owner = None if connection.needs is None else connection.principal.role
    limits = connection.host.memory.limits
    if limits is None or not owner:
        return await _begin_for(connection, header, owner)
    more = max(header.count or 1, 1)
    await forget_ended(limits, connection.host.transactions.coordinator, owner, more, header.name)
    with limits.beginning(owner, more, header.name):  # requests behind it see that they count
        return await _begin_for(connection, header, owner)


async def _begin_for(connection: Connection, header: commands.NewTxn, owner: str | None) -> commands.Begun:
    coordinator, timeout_s, name = connection.host.transactions.coordinator, header.timeout, header.name
    if (count := header.count) is None:
        view = await coordinator.begin(timeout_s, name, owner)
        _begun(connection, owner, [view], timeout_s)
        left_s = timeout_s if name is None else coordinator.open.left_s(view)
        return commands.Begun(id=view.id, **_standing(view, left_s))
    if name is not None:
        raise InvalidArgumentError(f"count must be absent for a transaction of one name, got {count}")
    view, *more = begun = await coordinator.begin_some(timeout_s, count, owner)
    _begun(connection, owner, begun, timeout_s)
    return commands.Begun(id=view.id, more=[one.id for one in more], **_standing(view, timeout_s))


def _begun(connection: Connection, owner: str | None, views: list[TransactionView], timeout_s: float) -> None:
    """Follow those that are open, and count them among their owner's."""
    headers, limits = connection.host.segments.transactions.headers, connection.host.memory.limits
    for view in views:
        if not view.header.state.final:
            headers.note(view)
        if limits is not None and owner and view.header.state is TransactionState.OPEN:
            limits.transaction_begun(owner, view.number, timeout_s, view.header.name)


def end(connection: Connection, header: commands.EndTxn, payload: memoryview) -> None:
    """END_TXN."""
    number, request_id = parse_id(header.id), header.request_id
    known, own, checked = None, True, False
    if connection.needs is not None:  # an owner never changes, so that the header that is followed here says it
        known = connection.host.segments.transactions.headers.known(number)
        own = known is not None and known.header.owner == connection.principal.role
        checked = known is not None and _is_to_check(connection, known, header)
    held = None
    if header.sent is not None and (own or known is None):
        held = connection.host.segments.operations.hold(number)  # records are written at the end of this turn
    ending = (_end if own and not checked else _end_if_allowed)(connection, number, header, held)
    if held is None:
        connection.start(request_id, ending)
    else:
        connection.start(request_id, ending, held.release)


async def _end_if_allowed(
    connection: Connection, number: int, header: commands.EndTxn, held: Held | None
) -> commands.Ended:
    """_end() one that is not known here to belong to the connection's role, or is to be checked."""
    _wanted(header)
    known = connection.host.segments.transactions.headers.known(number)
    of = await connection.host.transactions.coordinator.get(number) if known is None else known
    _check_owner(connection, of, header)
    if of.header.owner != connection.principal.role:
        _audit_end(connection, header)
    elif _is_to_check(connection, of, header):
        await _check_operations(connection, number, header)
    return await _end(connection, number, header, held)


async def _end(connection: Connection, number: int, header: commands.EndTxn, held: Held | None) -> commands.Ended:
    state, accepted = _wanted(header)
    coordinator = connection.host.transactions.coordinator
    try:
        if (sent := header.sent) is None:
            view: TransactionView | None = await coordinator.end(number, state, accepted)
        elif held is None:  # by another request
            view = None
        else:
            view = await CommitBehind(connection, number, held, sent).commit(coordinator, accepted, header.mark)
    except TRANSACTION_OVER:
        connection.sends.forget(number)
        raise
    if view is None:
        return commands.Ended(state="OPEN")
    connection.sends.forget(number)
    if (limits := connection.host.memory.limits) is not None and connection.role:
        limits.transaction_ended(connection.role, number)
    return commands.Ended(state=_state_of(view))


def _wanted(header: commands.EndTxn) -> tuple[TransactionState, list[str] | None]:
    """The state to end in, and the attempts that a commit accepts. Raises InvalidArgumentError."""
    state, accepted = _ACTIONS.get(header.action), header.accepted
    if state is None:
        raise InvalidArgumentError(f"action must be one of {', '.join(_ACTIONS)}, got {header.action!r:.80}")
    if state is not TransactionState.COMMITTED and (accepted is not None or header.sent is not None):
        raise InvalidArgumentError("an abort must have neither accepted attempts nor a count of sends")
    if (mark := header.mark) is not None and not 0 <= mark < 1 << MARK_BITS:
        raise InvalidArgumentError(f"mark must be an integer of {MARK_BITS} bits, got {mark}")
    return state, accepted


def _check_owner(connection: Connection, view: TransactionView, header: commands.EndTxn | commands.TxnState) -> None:
    """A role has its own transactions alone. Of another's, it learns what it would of one that never was; the audit
    tells them apart.
    """
    if connection.needs is None or view.header.owner == connection.principal.role:
        return
    if not connection.host.rights.allows(connection.principal, Need(Right.OPERATE)):
        request, why = f"{header.command.name} {view.id}", "the transaction belongs to another role"
        connection.denial(request, why, Need(Right.OPERATE))
        raise TransactionNotFoundError(f"there is no transaction {view.id} of this role")


def _is_to_check(connection: Connection, view: TransactionView, header: commands.EndTxn) -> bool:
    """Whether a role commits what it may have lost the right to, since it has begun the transaction."""
    changed = connection.host.rights.changed_since
    return header.action == "commit" and changed(connection.principal.role, view.header.created_ms)


async def _check_operations(connection: Connection, number: int, header: commands.EndTxn) -> None:
    """What was sent and acknowledged in the transaction counts with its commit: the role must still have the rights.

    What comes in the same turn as the commit, and is not recorded yet, is of what is attached. Raises
    AuthorizationError; the transaction stays open, and may be aborted.
    """
    rights, request = connection.host.rights, f"END_TXN {header.id}"
    for operation in await connection.host.transactions.coordinator.operations(number):
        right = Right.PRODUCE if operation.kind is OperationKind.WRITE else Right.CONSUME
        need = Need(right, on_topic(operation.segment.topic), operation.subscription)
        rights.check(connection.principal, need, request, connection.origin)


def _audit_end(connection: Connection, header: commands.EndTxn) -> None:
    """What operates the cluster ends a transaction of another role."""
    audit, request = connection.host.rights.audit, f"END_TXN {header.id}"
    audit.note_need(connection.principal, connection.origin, request, Need(Right.OPERATE), allowed=True)


def state(connection: Connection, header: commands.TxnState, payload: memoryview) -> None:
    """TXN_STATE."""
    connection.start(header.request_id, _state(connection, header))


async def _state(connection: Connection, header: commands.TxnState) -> commands.Standing:
    coordinator = connection.host.transactions.coordinator
    view = await coordinator.get(parse_id(header.id))
    _check_owner(connection, view, header)
    return commands.Standing(**_standing(view, coordinator.open.left_s(view)))


class _Standing(TypedDict):
    """The fields of a Standing."""

    state: commands.State
    left: float | None
    deadline_ms: int
    accepted: list[int] | None
    mark: int | None


def _standing(view: TransactionView, left_s: float | None) -> _Standing:
    accepted = view.header.accepted
    return {
        "state": _state_of(view),
        "left": left_s,
        "deadline_ms": view.header.timeout_ms,
        "accepted": None if accepted is None else list(accepted),
        "mark": view.header.mark,
    }


def _state_of(view: TransactionView) -> commands.State:
    return cast(commands.State, str(view.header.state))
