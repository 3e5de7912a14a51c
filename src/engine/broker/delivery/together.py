"""`Together`: which queue consumer gets the entries of one group, the chunks of a message of Apache Pulsar's clients.

A consumer puts a message together from its chunks, so all of them have to come to the same one, in order. Whoever gets
the first chunk gets those that follow. While it takes no messages, they are kept back, and so is what is behind them in
the same message; other entries go on. What is kept back is due again at the next event of the subscription: see
QueueDispatcher.pump().
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    from engine.broker.delivery.queue import QueueConsumer

_OWNERS_MAX = 10_000  # groups that are remembered
_KEPT_MAX = 1_000  # messages kept back; above it nothing new is read


class Together:
    """Of one dispatcher. Loop thread only."""

    __slots__ = ("_behind", "_owners", "kept")

    def __init__(self) -> None:
        self._owners: OrderedDict[int, QueueConsumer] = OrderedDict()
        self._behind: set[int] = set()  # groups of which something is kept back
        self.kept = BitMap64()

    @property
    def full(self) -> bool:
        """Whether so much is kept back that nothing new is to be read."""
        return len(self.kept) > _KEPT_MAX

    def owner(self, group: int, consumers: list[QueueConsumer], *, begins: bool) -> QueueConsumer | None:
        """The consumer that has the entries of a group before this one; None: any may have it."""
        found = None if begins else self._owners.get(group)
        return found if found in consumers else None

    def give(self, group: int, consumer: QueueConsumer) -> None:
        """The rest of a group is the consumer's."""
        self._owners[group] = consumer
        self._owners.move_to_end(group)
        if len(self._owners) > _OWNERS_MAX:
            self._owners.popitem(last=False)

    def waits(self, group: int) -> bool:
        """Whether an entry of the group is kept back, so that those behind it are as well."""
        return group in self._behind

    def keep(self, group: int, due: BitMap64) -> None:
        """Keep messages back."""
        self.kept |= due
        self._behind.add(group)

    def release(self) -> BitMap64:
        """All that was kept back: it is due again."""
        kept, self.kept = self.kept, BitMap64()
        self._behind.clear()
        return kept
