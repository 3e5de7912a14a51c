"""What consumers are sent, as plainly as it can be said: the model of `LoneOutlet` and `QueueOutlets`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class PlainLone:
    """`blocks`: those that are durable, [first, stop) and bytes. `acked`: offsets that are acknowledged."""

    next_offset: int = 0
    messages: int = 0
    size: int = 0
    writable: bool = True
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    sent: list[tuple[int, int, list[list[int]]]] = field(default_factory=list)

    def pump(self) -> None:
        """Send while there is credit, room and something durable; the window is as wide as any entry."""
        while self.messages > 0 and self.size > 0 and self.writable:
            while self.next_offset in self.acked:
                self.next_offset += 1
            found = next((block for block in self.blocks if block[0] <= self.next_offset < block[1]), None)
            if found is None:
                return
            first, stop, size = found
            skip = _runs([offset for offset in range(first, stop) if offset in self.acked])
            self.sent.append((first, stop, skip))
            self.messages -= stop - first - sum(b + 1 - a for a, b in skip)
            self.size -= size
            self.next_offset = stop


def _runs(offsets: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] + 1 == offset:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


WIDE = 65_535
TURNS_PER_BLOCK = 4


@dataclass(frozen=True)
class PlainEntry:
    """Offsets [first, stop). `later`: it has delivery times, and these messages of it are not due."""

    first: int
    stop: int
    size: int
    delayed: bool = False
    later: frozenset[int] = frozenset()


@dataclass
class PlainMember:
    """A consumer of a queue. It has more credit for bytes than it uses."""

    ident: int
    priority: int
    messages: int = 0
    window: int = 0
    paced: bool = False
    writable: bool = True
    held: set[int] = field(default_factory=set)

    def grant(self, messages: int, window: int | None) -> None:
        self.messages += messages
        self.paced = window is not None
        self.window = max(self.window, self.messages) if window is None else window

    @property
    def ready(self) -> bool:
        return self.messages > 0 and self.writable

    def fits(self, messages: int, room: int) -> bool:
        return messages <= room or self.window >= WIDE or (self.paced and 4 * messages <= self.window)

    def part(self, entry: PlainEntry, room: int) -> int:
        """How many messages of an entry that is too large."""
        if not self.paced or self.window <= 1:
            return room
        worth = -(-320 * (entry.stop - entry.first) // entry.size)
        return max(room, min(worth, 8 * self.window))


@dataclass
class PlainQueue:
    """`sent`: the consumer, the offsets, and the redelivery counts of those that have one, of each frame."""

    block_entries: int
    entries: list[PlainEntry] = field(default_factory=list)
    members: list[PlainMember] = field(default_factory=list)
    next_offset: int = 0
    turn: int = 0
    replay: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    sent: list[tuple[int, list[int], dict[int, int]]] = field(default_factory=list)

    def attach(self, member: PlainMember) -> None:
        self.members.append(member)
        self.members.sort(key=lambda one: one.priority)

    def detach(self, member: PlainMember) -> None:
        self.members.remove(member)
        self.hand_back(member, set(member.held))

    def hand_back(self, member: PlainMember, offsets: set[int]) -> None:
        mine = member.held & offsets
        member.held -= mine
        self.replay |= mine
        self.counts.update(mine)
        self.pump()

    def acknowledge(self, offsets: set[int]) -> None:
        self.acked |= offsets
        self.replay -= offsets
        for member in self.members:
            member.held -= offsets
        for offset in offsets:
            self.counts.pop(offset, None)

    def ready(self) -> list[PlainMember]:
        """Those of the best priority among all that may be sent something."""
        able = [member for member in self.members if member.ready]
        return [member for member in able if member.priority == able[0].priority]

    def pump(self) -> None:
        while self.ready():
            while not self.replay and self.next_offset in self.acked:
                self.next_offset += 1
            start = min(self.replay, default=self.next_offset)
            block = [entry for entry in self.entries if entry.stop > start][: self.block_entries]
            if not block:
                return
            if len(self.members) != 1 or not self.deal_whole(block, start):
                self.deal_in_turns(block)

    def deal_whole(self, block: list[PlainEntry], start: int) -> bool:
        [member] = self.members
        offsets = range(block[0].first, block[-1].stop)
        if self.replay or start != block[0].first or any(entry.delayed for entry in block):
            return False
        if not self.acked.isdisjoint(offsets) or not member.fits(len(offsets), member.messages):
            return False
        self.next_offset = block[-1].stop
        self.send(member, set(offsets))
        return True

    def deal_in_turns(self, block: list[PlainEntry]) -> None:
        share, at = max(1, len(block) // (TURNS_PER_BLOCK * len(self.members))), 0
        while at < len(block) and (ready := self.ready()):
            while at < len(block) and not self.due(block[at]):
                self.dealt(block[at])
                at += 1
            if at < len(block):
                self.turn += 1
                at += self.deal_turn(block[at : at + share], ready[self.turn % len(ready)])

    def deal_turn(self, entries: list[PlainEntry], member: PlainMember) -> int:
        """How many entries a consumer gets the last due message of."""
        room, offsets, done = member.messages, set[int](), 0
        for entry in entries:
            due = sorted(self.due(entry))
            if room <= 0 or not due:
                break
            most = len(due) if member.fits(len(due), room) else member.part(entry, room)
            offsets.update(due[:most])
            room -= len(due[:most])
            if len(due) > most:
                if self.next_offset >= entry.first:
                    self.next_offset = max(self.next_offset, due[most - 1] + 1)
                break
            self.dealt(entry)
            done += 1
        self.send(member, offsets)
        return done

    def due(self, entry: PlainEntry) -> set[int]:
        offsets = range(entry.first, entry.stop)
        return {o for o in offsets if o in self.replay or (o >= self.next_offset and o not in self.acked | entry.later)}

    def dealt(self, entry: PlainEntry) -> None:
        if entry.first <= self.next_offset < entry.stop:
            self.next_offset = entry.stop

    def send(self, member: PlainMember, offsets: set[int]) -> None:
        member.messages -= len(offsets)
        member.held |= offsets
        self.replay -= offsets
        counts = {offset: self.counts[offset] for offset in sorted(offsets) if self.counts[offset]}
        self.sent.append((member.ident, sorted(offsets), counts))
