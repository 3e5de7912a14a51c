"""`AttendanceLoop`: numbers hold for all brokers together: each shows the others what is there, and counts theirs.

Once in ROUND_S a broker shows which producers, consumers and transactions it has of what has a limit, and how many
connections, in a record of its own for each tenant and role; so what the others count of it is as old as its last
round. A broker that has none of these writes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine.broker.limits.present import Present, others_of
from engine.broker.upkeep.rounds import Rounds
from engine.broker.upkeep.shown import Shown
from engine.errors import EngineError, TransactionNotFoundError
from engine.metadata import keys
from engine.model.limits import ATTENDED

if TYPE_CHECKING:
    from engine.aio.tasks import Supervisor
    from engine.broker.limits.limits import BrokerLimits
    from engine.control.base.brokers import Brokers
    from engine.control.transactions.coordinator import TransactionCoordinator
    from engine.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class AttendanceLoop(Rounds):
    """One per broker, once there is such a limit. Loop thread only."""

    over, names = "what is at all brokers", ATTENDED

    def __init__(
        self,
        metadata: MetadataStore,
        limits: BrokerLimits,
        brokers: Brokers,
        coordinator: TransactionCoordinator,
        tasks: Supervisor,
    ) -> None:
        super().__init__(limits)
        self._brokers = brokers
        self._coordinator = coordinator
        self._records = Shown(metadata, brokers, keys.PRESENT, Present, "what is attached here", tasks)

    async def check(self) -> None:
        """Tell the others what is here, and count what is there."""
        if self._brokers.alone:
            self._limits.meet({})
            return
        for role in self._limits.crowded_roles():
            await forget_ended(self._limits, self._coordinator, role, 1, None)
        followed = self._limits.groups(ATTENDED)
        mine = self._limits.present(self._records.said)
        await self._records.show({group: present for group, present in mine.items() if group in followed})
        self._limits.meet(others_of(await self._records.others(self._limits.groups(ATTENDED))))

    async def meet(self, group: str) -> None:
        """Count what is there of it."""
        if not self._brokers.alone:
            self._limits.meet_one(group, others_of(await self._records.others_of(group)))


async def forget_ended(
    limits: BrokerLimits, coordinator: TransactionCoordinator, role: str, more: int, name: str | None
) -> None:
    """Where so many more transactions of a role would be refused: count those no more that another broker has ended."""
    for number in limits.transactions_to_look_at(role, more, name):
        try:
            over = (await coordinator.get(number)).header.state.final
        except TransactionNotFoundError:
            over = True
        except EngineError as e:
            log.warning("it is not known whether a transaction of %s is open: %s", role, e)
            continue
        if over:
            limits.transaction_ended(role, number)
