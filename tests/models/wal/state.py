"""The state of the model of the write-ahead log, its rules, and the size of an instance.

The rules are those of docs/formats/objects.md#rules. Each member of `Rule` is a part of one that can be switched off
alone; the exploration then has to find the fault that the rule prevents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

SESSIONS: Final = "ABC"


class Rule(Enum):
    """A part of a rule, named after it."""

    R1_LIST = "a segment's record has a list of references, which claims and takeovers only make longer"
    R2_REFERENCE = "the reference to the own session is in the record before the first append"
    R3_ALL_OPEN = "every session with an open reference is fenced, not only that of the last owner"
    R4_FIRST_HOLE = "the fence is looked for from the first name without data, not behind the last object"
    R4_ADOPT = "a FENCE that is there is the fence, whichever process wrote it"
    R4_READ_BACK = "a name that exists is read: data is no fence"
    R5_VERSION = "`fenced` is set by compare-and-set on the record that gave `trimmed`"
    R6_KEPT = "a FENCE is never deleted"
    R7_READ_BACK = "the writer reads what is there when a PUT is refused or unanswered"
    R7_PREFIX = "n is acknowledged when all objects up to n are stored"
    R7_DELIVERY = "only what is acknowledged is delivered"
    R8_GIVE_UP = "a session whose PUT stays unresolved ends"
    R9_STORED = "a segment is handed over when all objects with its groups are stored"
    R10_OWN = "a session that claims what it has an open reference to closes that at the end of its stored objects"
    R11_OBJECTS = "recovery reads files and objects, never the local file of an earlier term"
    R12_RECORD = "a recovery that meets a hole reads the record again before it reports damage"
    R12_GONE = "a takeover that finds no record of a session to fence reads the segment's before it reports damage"
    R13_NAME = "a file's name has its uploader's session and term and the number of the try"
    R14_OWNER = "a file is named only by the owner of the segment, at its term"
    R14_TERM = "a file is named at the term at which its upload began, not at a later one of the same session"
    R14_SESSION = "a file is named only while its uploader's session is not fenced"
    R14_COVERED = "a file takes the place of the references that it covers, and of no others"
    R15_INDEX = "trimming stops at the least `from` of all references to the session, whichever broker owns the segment"
    R15_NAMED = "the log is trimmed after the record names the file"
    R15_OWN = "`trimmed` is written while `fenced` is not set, by compare-and-set"
    R16_ORDER = "the sweep reads `fenced` first, then the records"
    R18_KEPT = "an object that segments share is deleted by the sweep alone, when no record names it"
    R18_SETTLED = "the sweep deletes of a session that lives only objects that it will name in no record any more"
    R18_ORDER = "the sweep reads first what a session will name no more, then the records"
    R18_BOUND = "a session says that it will name an object no more when every naming of it has ended"
    R19_NAMED = "a reference moves on only when files hold all that the segment has in the log so far"
    R19_OWNER = "a reference is moved only by the owner of the segment, at the term at which it began to"


class _Fence:
    """The content of a FENCE object; there is one."""

    def __repr__(self) -> str:
        return "FENCE"


FENCE: Final = _Fence()


class Group(NamedTuple):
    """One append of one segment. Values are unique."""

    segment: int
    term: int
    offset: int
    value: str


Groups = tuple[Group, ...]
Slot = Groups | _Fence | None  # what a name of a log holds


class Reference(NamedTuple):
    """A range of a session's log with groups of a segment; `end` is None while it is open."""

    session: int
    start: int
    end: int | None
    term: int


class File(NamedTuple):
    """A file of rolled entries. `name` is all that tells it from another upload."""

    name: tuple[object, ...]
    first: int
    values: tuple[str, ...]


class Record(NamedTuple):
    """A segment's record in the metadata store. `floor`: what lies below was deleted by retention."""

    owner: int | None
    term: int
    references: tuple[Reference, ...]
    files: tuple[File, ...]
    floor: int = 0

    @property
    def named_end(self) -> int:
        return self.files[-1].first + len(self.files[-1].values) if self.files else self.floor


class WalRecord(NamedTuple):
    """A session's record in the metadata store. `gone`: it was deleted, behind its end. `settled`: shared objects of
    a lower number are named in no further record.
    """

    trimmed: int = 0
    fenced: int | None = None
    gone: bool = False
    settled: int = 0


class Phase(Enum):
    """The steps of a takeover: for each session to fence PROBE, WALL, RECORD; CHOOSE in between, and at the end."""

    CHOOSE = "choose"
    PROBE = "probe"
    WALL = "wall"
    RECORD = "record"


class Takeover(NamedTuple):
    """A session takes a segment over. `references` and `files` are the record's as it was claimed."""

    phase: Phase
    segment: int
    term: int
    references: tuple[Reference, ...]
    files: tuple[File, ...]
    ends: tuple[int | None, ...]
    unfenced: tuple[int, ...]  # indexes of references whose sessions are still to be fenced
    at: int = 0
    seen: WalRecord = WalRecord()
    floor: int = 0


class Part(NamedTuple):
    """A rolled file that is uploaded; `upto`: the log is needed from there when the file is named."""

    segment: int
    term: int
    file: File
    upto: int


class Upload(NamedTuple):
    """A session uploads an object: one file, or several segments' that share it. `parts`: not named yet."""

    parts: tuple[Part, ...]
    stored: bool
    number: int | None = None  # of a shared object, in its session


class Move(NamedTuple):
    """A session moves its reference of a silent segment on, to the object `upto`."""

    segment: int
    term: int
    upto: int


class Broker(NamedTuple):
    """One broker session."""

    sent: tuple[Groups, ...]  # by n
    stored: tuple[bool, ...]  # whether the session knows that n is stored
    replies: frozenset[tuple[int, bool]]  # (n, whether the PUT was accepted) that have arrived and were not handled
    acknowledged: int  # all n below
    over: bool
    terms: tuple[int, ...]  # by segment; 0: not served
    logs: tuple[tuple[str, ...], ...]  # by segment, as the session serves it
    recovered: tuple[int, ...]  # by segment: the entries that it began with
    takeover: Takeover | None
    upload: Upload | None
    shared: int = 0  # objects that segments share, which it has begun
    move: Move | None = None


class Sweep(NamedTuple):
    """What a sweep has seen of a session. `due`: it may delete now. `ended`: it found the session's end; else it
    deletes shared objects alone.
    """

    session: int
    unreferenced: bool
    unnamed: frozenset[File]
    due: bool
    ended: bool = True


class Budget(NamedTuple):
    """How often each may still happen."""

    resends: int = 0
    losses: int = 0
    takeovers: int = 1
    handovers: int = 0
    uploads: int = 0
    sweeps: int = 0
    retentions: int = 0
    moves: int = 0


class State(NamedTuple):
    """Everything. `promised`: (segment, offset, value) of all that was acknowledged or delivered.

    `fences`: what was recorded first as the end of each session; a history for check() alone.
    """

    wals: tuple[tuple[Slot, ...], ...]  # by session and n
    files: frozenset[File]
    records: tuple[Record, ...]
    wal_records: tuple[WalRecord, ...]
    puts: tuple[tuple[int, int], ...]  # copies of data PUTs under way: (session, n)
    fence_puts: frozenset[tuple[int, int]]
    brokers: tuple[Broker, ...]
    promised: frozenset[tuple[int, int, str]]
    sweep: Sweep | None
    fences: tuple[int | None, ...]
    left: Budget


Step = tuple[str, State]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The size of what is explored, and the rules that are off."""

    off: frozenset[Rule] = frozenset()
    segments: int = 1
    writes: tuple[int, int, int] = (2, 1, 0)  # objects that each session may send
    window: int = 2  # PUTs in flight
    claimers: str = "BC"
    trims: bool = False
    rolls: bool = False  # a file may end before what is acknowledged does
    shares: bool = False  # an upload has the files of all segments that the session serves
    budget: Budget = field(default_factory=Budget)

    @property
    def span(self) -> int:
        """Names at which a FENCE is PUT at once: more than the window."""
        return self.window + 1

    def keeps(self, rule: Rule) -> bool:
        return rule not in self.off

    def initial(self) -> State:
        """Session A owns and serves all segments, at term 1."""
        none, ones = (0,) * self.segments, (1,) * self.segments
        empty: tuple[tuple[str, ...], ...] = ((),) * self.segments
        idle = Broker((), (), frozenset(), 0, False, none, empty, none, None, None)
        record = Record(0, 1, (Reference(0, 0, None, 1),), ())
        return State(
            wals=tuple((None,) * (count + self.span) for count in self.writes),
            files=frozenset(),
            records=(record,) * self.segments,
            wal_records=(WalRecord(),) * len(SESSIONS),
            puts=(),
            fence_puts=frozenset(),
            brokers=(idle._replace(terms=ones), idle, idle),
            promised=frozenset(),
            sweep=None,
            fences=(None,) * len(SESSIONS),
            left=self.budget,
        )


def replaced(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    """The tuple with another item at an index."""
    return (*items[:index], item, *items[index + 1 :])


def with_broker(state: State, session: int, **changes: object) -> State:
    broker = state.brokers[session]._replace(**changes)
    return state._replace(brokers=replaced(state.brokers, session, broker))


def with_record(state: State, segment: int, record: Record) -> State:
    return state._replace(records=replaced(state.records, segment, record))


def with_wal_record(state: State, session: int, record: WalRecord) -> State:
    fences = state.fences if state.fences[session] is not None else replaced(state.fences, session, record.fenced)
    return state._replace(wal_records=replaced(state.wal_records, session, record), fences=fences)


def with_slot(state: State, session: int, n: int, slot: Slot) -> State:
    return state._replace(wals=replaced(state.wals, session, replaced(state.wals[session], n, slot)))


def spent(state: State, what: str) -> State:
    return state._replace(left=state.left._replace(**{what: getattr(state.left, what) - 1}))


def name(session: int, n: int) -> str:
    return f"{SESSIONS[session]}{n}"
