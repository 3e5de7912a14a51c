"""Transactions, at any broker."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from engine.wire.commands.command import Command
from engine.wire.commands.header import Count, Part, Request, Seconds

Mark = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Attempt = Annotated[int, Meta(ge=0)]  # 64 bits, and msgpack knows no more
TransactionId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
State = Literal["OPEN", "COMMITTED", "ABORTED"]


class Standing(Part, frozen=True, kw_only=True):
    """How a transaction stands.

    `deadline_ms`: when it is aborted if it has not ended, by the broker's wall clock. `left`: how many seconds that is
    from now, None where that cannot be said. `accepted`: the numbers of the attempts that a commit has accepted, None
    for all. `mark`: of the commit that ended it.
    """

    state: State
    deadline_ms: Count
    left: Seconds | None = None
    accepted: list[Attempt] | None = None
    mark: Mark | None = None


class Begun(Standing, frozen=True, kw_only=True):
    """It, and the ids of the others that were begun with it."""

    id: TransactionId
    more: list[TransactionId] | None = None


class NewTxn(Request[Begun], frozen=True, kw_only=True):
    """`timeout`: seconds. `name`: the open or committed one of that name, if there is one. `count`: so many are begun,
    if all can be.
    """

    command = Command.NEW_TXN
    answer = Begun
    timeout: float
    name: str | None = None
    count: int | None = None


class Ended(Part, frozen=True, kw_only=True):
    """What came of it."""

    state: State


class EndTxn(Request[Ended], frozen=True, kw_only=True):
    """`action`: "commit" | "abort"; the same once more changes nothing.

    `accepted`: the names of the attempts whose operations take effect; None: all. `sent`: the SEND frames in the
    transaction that were sent on this connection, which are not all answered: it is committed when they are all in the
    log; otherwise the answer's state is OPEN. `mark`: TXN_STATE says it of one that this has committed.
    """

    command = Command.END_TXN
    answer = Ended
    id: str
    action: str
    accepted: list[Any] | None = None
    sent: int | None = None
    mark: int | None = None


class TxnState(Request[Standing], frozen=True, kw_only=True):
    """How it stands."""

    command = Command.TXN_STATE
    answer = Standing
    id: str
