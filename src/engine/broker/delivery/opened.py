"""Which subscriptions are open in a segment, for code that may find none: nothing that serves them is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from engine.aio.tasks import Supervisor
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.transactions.headers import TransactionHeaders
    from engine.broker.transactions.operations import Operations


class Participation(NamedTuple):
    """What all subscriptions of a broker share, for transactions."""

    headers: TransactionHeaders
    operations: Operations
    tasks: Supervisor


def subscriptions_of(hosted: HostedSegment) -> dict[str, HostedSubscription]:
    """The subscriptions that are open in a segment, by name. All of them are made by `hosting`, of this class."""
    return cast("dict[str, HostedSubscription]", hosted.subscriptions)
