"""`Together`: which queue consumer gets the entries of one group, the chunks of a message of Apache Pulsar's clients.

A consumer puts a message together from its chunks, so all of them have to come to the same one, in order. The one
that gets the first chunk gets those that follow. While it takes no messages, they are kept back, and so is what is
behind them in the same message; other entries go on. What is kept back is due again at the next event of the
subscription: see QueueDispatcher.pump().

A client that hands a message back may name its last chunk alone, as that of C++ does: all of it is due again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    from engine.broker.delivery.queue import QueueConsumer

_GROUPS_MAX = 4_096  # that are remembered
_KEPT_MAX = 1_000  # messages kept back; above it nothing new is read


class _Group:
    """`offsets`: of its entries, since the first one was dealt."""

    __slots__ = ("offsets", "owner")

    def __init__(self) -> None:
        self.owner: QueueConsumer | None = None
        self.offsets = BitMap64()


class Together:
    """Of one dispatcher. Loop thread only."""

    __slots__ = ("_behind", "_groups", "_members", "kept")

    def __init__(self) -> None:
        self._groups: OrderedDict[int, _Group] = OrderedDict()  # the one that was met longest ago first
        self._members: dict[int, _Group] = {}  # by the offsets of their entries
        self._behind: set[int] = set()  # groups of which something is kept back
        self.kept = BitMap64()

    @property
    def full(self) -> bool:
        """Whether so much is kept back that nothing new is to be read."""
        return len(self.kept) > _KEPT_MAX

    def meet(self, group: int, offset: int, *, begins: bool) -> None:
        """An entry of a group is dealt."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _Group()
            if len(self._groups) > _GROUPS_MAX:
                self._forget(self._groups.popitem(last=False)[1])
        elif begins:
            self._forget(found)
            found.owner, found.offsets = None, BitMap64()
        found.offsets.add(offset)
        self._members[offset] = found

    def _forget(self, group: _Group) -> None:
        for offset in group.offsets:
            self._members.pop(offset, None)

    def owner(self, group: int, consumers: list[QueueConsumer]) -> QueueConsumer | None:
        """The consumer that has the entries of a group before the one that was met; None: any may have it."""
        found = self._groups[group].owner
        return found if found in consumers else None

    def give(self, group: int, consumer: QueueConsumer) -> None:
        """The rest of a group is the consumer's."""
        self._groups[group].owner = consumer

    def whole(self, offsets: BitMap64) -> BitMap64:
        """With all of each group that one of them is of."""
        if not self._members or not offsets:
            return offsets
        wanted = BitMap64(self._members) & offsets
        return offsets.union(*(self._members[offset].offsets for offset in wanted)) if wanted else offsets

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
