"""What consumers that share a segment are sent, as plainly as it can be said: the model of `SharedOutlets`."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.broker.delivery.bucket_assignment import UNASSIGNED, spread

BLOCKS_PER_READ = 2


@dataclass(frozen=True)
class PlainStamped:
    """An entry with the offsets [first, stop), of one bucket."""

    first: int
    stop: int
    size: int
    bucket: int


@dataclass
class PlainSharer:
    """`writable`: its connection is not full. `has_room`: it takes some more even so, while others go on."""

    ident: int
    name: str
    messages: int = 0
    size: int = 0
    writable: bool = True
    has_room: bool = False

    @property
    def ready(self) -> bool:
        return self.messages > 0 and self.size > 0 and self.writable

    @property
    def takes(self) -> bool:
        return self.messages > 0 and self.size > 0 and (self.writable or self.has_room)


@dataclass
class PlainBucket:
    """`sent` to `holder` and not acknowledged; `due`: read, and not sent. `owner`, `holder`: numbers of members.

    `waits`: for these, which open transactions hold; meanwhile it has no owner.
    """

    sent: set[int] = field(default_factory=set)
    due: set[int] = field(default_factory=set)
    owner: int = UNASSIGNED
    holder: int = UNASSIGNED
    waits: set[int] = field(default_factory=set)

    @property
    def receiver(self) -> int:
        """The number of the member that may be sent what is due."""
        if self.waits or (self.sent and self.holder != self.owner):
            return UNASSIGNED
        return self.owner

    @property
    def active(self) -> int:
        """The number of the member that may acknowledge."""
        return self.holder if self.sent else UNASSIGNED if self.waits else self.owner


@dataclass
class PlainShared:
    """`sent`: the consumer, the offsets and the bytes of each frame.

    `acked`, `held`: offsets that are acknowledged, and that open transactions hold. `hidden`: that no reader gets.
    `limit`: no reader gets anything from there on; None: there is no limit.
    """

    block_size: int
    buckets: list[PlainBucket]
    entries: list[PlainStamped] = field(default_factory=list)
    members: list[PlainSharer | None] = field(default_factory=list)
    next_offset: int = 0
    acked: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)
    limit: int | None = None
    sent: list[tuple[int, list[int], int]] = field(default_factory=list)

    # -- members -------------------------------------------------------------------------------------------------------

    def attach(self, member: PlainSharer) -> None:
        """One of the same name makes room for it."""
        for number, earlier in enumerate(self.members):
            if earlier is not None and earlier.name == member.name:
                self.members[number] = member
                self.release(number)
                for bucket in self.buckets:
                    if bucket.owner == number:
                        bucket.waits |= self.held
                return
        if None not in self.members:
            self.members.append(None)
        self.members[self.members.index(None)] = member
        self.assign()

    def detach(self, member: PlainSharer) -> None:
        number = self.members.index(member)
        self.members[number] = None
        self.release(number)
        self.assign()
        self.pump()

    def release(self, number: int) -> None:
        for bucket in self.buckets:
            if bucket.holder == number:
                bucket.due |= bucket.sent
                bucket.sent = set()

    def assign(self) -> None:
        attached = sorted((m.name, number) for number, m in enumerate(self.members) if m is not None)
        owners = spread([bucket.owner for bucket in self.buckets], [number for _, number in attached])
        for bucket, owner in zip(self.buckets, owners, strict=True):
            if owner != bucket.owner:
                bucket.waits |= self.held
            bucket.owner = owner

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def acknowledge(self, member: PlainSharer, positions: list[tuple[int, int]]) -> list[int]:
        """The buckets in which it may not."""
        number, refused = self.members.index(member), []
        for index, position in positions:
            bucket = self.buckets[index]
            below = {offset for offset in bucket.sent | bucket.due if offset < position}
            if below and bucket.active != number:
                refused.append(index)
            elif below:
                bucket.sent -= below
                bucket.due -= below
                self.acked |= below
        self.pump()
        return sorted(refused)

    def commit(self) -> None:
        """What transactions hold is acknowledged."""
        self.acked |= self.held
        self.held = set()
        for bucket in self.buckets:
            bucket.waits = set()
        self.pump()

    # -- sending -------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        while any(member is not None and member.ready for member in self.members):
            room = [[m.messages, m.size] if m is not None and m.takes else [0, 0] for m in self.members]
            start = self.wanted(room)
            block = [] if start is None else self.read(start, room)
            if start is None or not block:
                return
            self.route(start, block, room)

    def wanted(self, room: list[list[int]]) -> int | None:
        """What is due goes first."""
        due = [min(b.due) for b in self.buckets if b.due and b.receiver != UNASSIGNED and min(room[b.receiver]) > 0]
        return min(due) if due else self.next_offset if any(messages > 0 for messages, _ in room) else None

    def read(self, start: int, room: list[list[int]]) -> list[PlainStamped]:
        takers = sum(size > 0 for _, size in room)
        left = min(sum(size for _, size in room), self.block_size * min(takers, BLOCKS_PER_READ))
        return read_entries(self.entries, start, left, self.limit)

    def route(self, start: int, block: list[PlainStamped], room: list[list[int]]) -> None:
        if block[0].first > start:  # retention has deleted what was before
            for bucket in self.buckets:
                bucket.sent = {offset for offset in bucket.sent if offset >= block[0].first}
                bucket.due = {offset for offset in bucket.due if offset >= block[0].first}
            self.next_offset = max(self.next_offset, block[0].first)
        parcels: dict[int, tuple[list[int], int]] = {}
        for entry in block:
            bucket, offsets = self.buckets[entry.bucket], set(range(entry.first, entry.stop))
            receiver = bucket.receiver
            bucket.due |= {o for o in offsets if o >= self.next_offset} - self.acked - self.held - self.hidden
            self.next_offset = max(self.next_offset, entry.stop)
            if receiver == UNASSIGNED or min(room[receiver]) <= 0 or not bucket.due or min(bucket.due) not in offsets:
                continue
            given = bucket.due & offsets
            bucket.due -= given
            bucket.sent |= given
            bucket.holder = receiver
            room[receiver][0] -= len(given)
            room[receiver][1] -= entry.size
            before, size = parcels.get(receiver, ([], 0))
            parcels[receiver] = ([*before, *sorted(given)], size + entry.size)
        for number, (given_, size) in sorted(parcels.items()):
            member = self.members[number]
            assert member is not None
            member.messages -= len(given_)
            member.size -= size
            self.sent.append((member.ident, given_, size))


def read_entries(entries: list[PlainStamped], start: int, size: int, limit: int | None) -> list[PlainStamped]:
    """The entries from the one on that holds the offset, of so many bytes, or one that is larger; below the limit."""
    found: list[PlainStamped] = []
    for entry in entries:
        if entry.stop <= start or (limit is not None and max(entry.first, start) >= limit):
            continue
        if found and sum(one.size for one in found) + entry.size > size:
            break
        found.append(entry)
    return found
