"""The consumers that share a subscription in one segment: which types go together, and which of them is active.

All four types of subscription are read through the broker's queue, which acknowledges message by message:

    Exclusive     one consumer
    Failover      several, of which one is active; the others are given no credit until it leaves
    Shared        several, each is dealt what it has credit for
    Key_Shared    as Shared, and each message goes to the consumer that owns its key (key_shared.py)

The segment's owner serves all of its consumers, so what is known here is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import ConsumerBusyError

if TYPE_CHECKING:
    import asyncio

    from engine.pulsar.consumer import PulsarConsumer

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")

Key = tuple[str, str]  # of the segment's name and the subscription


@dataclass(eq=False)
class Group:
    """The consumers of one subscription in one segment. `seeking`: done when a seek is."""

    type: int
    members: list[PulsarConsumer] = field(default_factory=list)
    active: PulsarConsumer | None = None  # of Failover
    seeking: asyncio.Future[None] | None = None

    def choose(self) -> PulsarConsumer | None:
        """The member that is to be active: of the best priority the one that came first; of partitions, in turn."""
        if not self.members:
            return None
        best = min(member.priority for member in self.members)
        ready = [member for member in self.members if member.priority == best]
        return ready[max(ready[0].partition, 0) % len(ready)]


class Groups:
    """Of one broker. Loop thread only."""

    def __init__(self) -> None:
        self._groups: dict[Key, Group] = {}

    def find(self, key: Key) -> Group | None:
        """The group; None while it has no members."""
        return self._groups.get(key)

    def check(self, key: Key, kind: int) -> None:
        """Raise ConsumerBusyError unless a consumer of that type may join."""
        group = self._groups.get(key)
        if group is None or not group.members:
            return
        if group.type != kind:
            raise ConsumerBusyError(
                f"the subscription {key[1]!r} is read by consumers of the type {TYPES[group.type]}, got {TYPES[kind]}"
            )
        if kind == EXCLUSIVE:
            raise ConsumerBusyError(f"the exclusive subscription {key[1]!r} has a consumer already")

    def join(self, key: Key, member: PulsarConsumer) -> Group:
        """Add a member. Raises ConsumerBusyError."""
        self.check(key, member.type)
        group = self._groups.get(key)
        if group is None or (not group.members and group.seeking is None):
            group = self._groups[key] = Group(member.type)
        group.type = member.type
        group.members.append(member)
        return group

    def sought(self, key: Key, group: Group) -> None:
        """A seek has ended."""
        group.seeking = None
        if not group.members and self._groups.get(key) is group:
            del self._groups[key]

    def leave(self, key: Key, member: PulsarConsumer) -> Group | None:
        """Remove a member; the group it was in."""
        group = self._groups.get(key)
        if group is None or member not in group.members:
            return None
        group.members.remove(member)
        if not group.members and group.seeking is None:
            del self._groups[key]
        return group
