"""Group commit of one segment without failures, as plain Python: which job is next, and what is durable behind it.

Slow, obvious, and independent of the native code it is compared with. One file, no lease, appends of one message each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Job = tuple[int, int, bool, bool]  # position and bytes of what it writes, 0 for nothing; whether it pads, and syncs
Group = tuple[int, int, int]  # first offset, offset behind its last append, bytes


@dataclass
class Rules:
    """How a segment commits. `mode`: "fsync", "interval", "os" or "object"."""

    mode: str
    group_max: int
    ahead_min: int
    pad_max: int
    small_handed_max: int  # groups on the way to a backing, of which a small one may be the next
    bytes_max: int  # unsynced, while another group is written ahead; with a backing, or on the way to it


@dataclass
class PlainCommits:
    """`allocated`: the file's length on the disk, as far as known; `end`: where its next append goes."""

    rules: Rules
    end: int
    allocated: int
    next_offset: int = 0
    waiting: list[Group] = field(default_factory=list)  # the last one takes the next append, while it has room
    closed: bool = True  # the last one of `waiting` takes no more
    primary: tuple[list[Group], bool, bool, int] | None = None  # what it writes; whether it syncs, pads; synced to
    ahead: Group | None = None
    written: list[Group] = field(default_factory=list)
    covered: list[Group] = field(default_factory=list)
    handed: list[Group] = field(default_factory=list)  # to the backing, and not durable
    went: list[Group] = field(default_factory=list)  # there, ever
    stored: set[int] = field(default_factory=set)  # first offsets of those that it has
    small_wanted: bool = False  # a small group has waited for others long enough
    sync_wanted: bool = False
    synced: int = 0
    durable: int = 0
    jobs: list[Job] = field(default_factory=list)  # each as it is started
    kinds: list[str] = field(default_factory=list)  # of each

    def append(self, size: int) -> None:
        """An append of one message."""
        offset = self.next_offset
        self.next_offset += 1
        if self.waiting and not self.closed and self.waiting[-1][2] + size <= self.rules.group_max:
            first, _, before = self.waiting[-1]
            self.waiting[-1] = first, self.next_offset, before + size
        else:
            self.waiting.append((offset, self.next_offset, size))
            self.closed = False

    def turn(self) -> None:
        """A turn of the loop ends, or a job has: start what may be started."""
        if self.primary is None:
            head = self.waiting[0] if self.waiting else None
            if self.rules.mode == "object":
                if head is not None and self._may_follow(head):
                    self._start([self._take()])
            elif head is not None and self.ahead is None and not (self.written and head[2] >= self.rules.ahead_min):
                self._start([self._take()])
            elif self.written or (self.sync_wanted and self.durable > self.synced):
                self._start([])
        backed = self.rules.mode == "object"
        if self.primary is not None and not self.primary[2] and self.ahead is None and self.waiting and not backed:
            head = self.waiting[0]
            unsynced = sum(group[2] for group in self.written + self.covered)
            large = head[2] >= self.rules.ahead_min or self.rules.mode != "fsync"
            if large and unsynced + head[2] <= self.rules.bytes_max:
                self.ahead = self._take()
                self._started("ahead", [self.ahead], pads=False, syncs=False)

    def _may_follow(self, head: Group) -> bool:
        """Whether the group may go to the backing, which has not stored those before it."""
        if not self.handed:
            return True
        if sum(group[2] for group in self.handed) + head[2] > self.rules.bytes_max:
            return False
        if head[2] >= self.rules.ahead_min or len(self.waiting) > 1:
            return True
        return self.small_wanted and len(self.handed) < self.rules.small_handed_max

    def _take(self) -> Group:
        self.closed = self.closed or len(self.waiting) == 1
        group = self.waiting.pop(0)
        self.end += group[2]
        return group

    def _start(self, groups: list[Group]) -> None:
        syncs = not groups or self.rules.mode == "fsync"
        small = bool(groups) and groups[0][2] <= self.rules.pad_max and self.rules.mode != "object"
        pads = small and self.end > self.allocated
        self.small_wanted = False
        self.covered, self.written = self.written + groups, []
        self.sync_wanted = self.sync_wanted and not syncs
        # What becomes durable while it runs may be written behind its sync.
        self.primary = groups, syncs, pads, self.covered[-1][1] if self.covered else self.durable
        self._started("primary", groups, pads, syncs)

    def _started(self, kind: str, groups: list[Group], pads: bool, syncs: bool) -> None:
        size = sum(group[2] for group in groups)
        self.jobs.append((self.end - size if groups else 0, size, pads, syncs))
        self.kinds.append(kind)

    def primary_ends(self, allocated: int) -> None:
        """The primary job has ended, in order. `allocated`: the file's length on the disk behind it."""
        assert self.primary is not None
        groups, syncs, _, upto = self.primary
        covered, self.covered, self.primary = self.covered, [], None
        self.allocated = allocated
        if syncs:
            self.synced = upto
        if self.rules.mode == "object":
            self.handed += covered
            self.went += covered
        elif self.rules.mode == "fsync":
            self._publish(covered)
        elif groups:
            self._publish(groups + self.written)
            self.written = []
        self.turn()

    def ahead_ends(self, allocated: int) -> None:
        """The ahead job has ended, in order."""
        assert self.ahead is not None
        self.written.append(self.ahead)
        self.ahead, self.allocated = None, allocated
        if self.rules.mode != "fsync" and not (self.primary is not None and self.primary[0]):
            self._publish(self.written)
            self.written = []
        self.turn()

    def stores(self, index: int) -> None:
        """The backing has one of `handed`, those that it had before left out of the count."""
        self.stored.add([group[0] for group in self.handed if group[0] not in self.stored][index])
        while self.handed and self.handed[0][0] in self.stored:
            self._publish([self.handed.pop(0)])
        self.turn()

    def gathered(self) -> None:
        """A small group has waited for others long enough."""
        self.small_wanted = bool(self.waiting)
        self.turn()

    def sync_soon(self) -> None:
        """The timer of durability "interval", or the segment is about to be closed."""
        self.sync_wanted = True
        self.turn()

    def _publish(self, groups: list[Group]) -> None:
        if groups:
            self.durable = groups[-1][1]
