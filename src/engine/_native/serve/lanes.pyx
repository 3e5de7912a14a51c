# cython: language_level=3
"""Which entries of a producer a segment has: a lane for each producer, kind and bucket.

A kind is that of a batch: keyed or not, transactional or not; and chunks of Apache Pulsar's clients which others
follow are a kind of their own. In a lane sequences rise. For an entry with the sequences first..last,

    last <= level          a duplicate
    first > level          new: the level becomes `last`
    first <= level < last  part of it is stored: refused

What the levels mean across reshapes and failures is told in `storage/dedup/dedup.py`, which is the heir of `Lanes`
and decides what is rare: how a lane begins, and the cells that a bucket is cut into. Plain Python for the same is
`tests/reference/lanes_reference.py`.
"""
from engine.errors import InvalidArgumentError, PartlyStoredError, StorageError

from engine._native.format cimport entry as e
from engine._native.serve.log cimport PART, RECENT, Claim, Seen
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memmove

UNKNOWN_OFFSET = -1

cdef int64_t UNKNOWN = -1
cdef uint32_t ORDER = e.KEYED | PART  # of a kind: what is one order after a failure


cdef class Lane:
    """A lane in a bucket of one cell: sequences rise."""

    def __init__(self, int64_t base=-1, recent=()):
        self.base = base
        self.recent = recent

    def __dealloc__(self):
        PyMem_Free(self.newest)

    @property
    def recent(self):
        """(first sequence, last sequence, offset, messages) of the newest entries, oldest first."""
        cdef Py_ssize_t i
        return [(self.newest[i].first_sequence, self.newest[i].last_sequence, <int64_t>self.newest[i].offset,
                 self.newest[i].count) for i in range(self.count)]

    @recent.setter
    def recent(self, entries):
        self.count = 0
        for first, last, offset, messages in entries:
            self.remember(first, last, offset, messages)

    @property
    def last(self):
        """The highest sequence appended, -1 for none."""
        return self.highest()

    def reach(self, area):
        """(low, high): of messages with a hash in the area, all with a sequence up to `low` are stored, and none with
        one above `high`.
        """
        return self.last, self.last

    def push(self, Claim claim not None, int64_t offset, int64_t durable, area):
        """Remember an appended entry; the oldest are forgotten once they are durable."""
        self.note(claim, offset, durable)

    def drop(self, int64_t offset):
        """Forget the entries at or above an offset; returns their first sequences."""
        cdef list dropped = []
        while self.count and <int64_t>self.newest[self.count - 1].offset >= offset:
            self.count -= 1
            dropped.append(self.newest[self.count].first_sequence)
        return dropped[::-1]

    def lift(self, area, seen):
        """Everything up to and with this entry is stored: a snapshot says so."""
        cdef int64_t before = self.highest()
        first, last, offset, messages = seen
        if last > before:
            self.count = 0
            self.base = last if offset < 0 else max(before, first - 1)
            if offset >= 0:
                self.remember(first, last, offset, messages)

    def forget_oldest(self, Py_ssize_t entries):
        """Forget so many of the oldest."""
        self.count -= entries
        memmove(self.newest, self.newest + entries, self.count * sizeof(Seen))

    def remember(self, uint64_t first, uint64_t last, int64_t offset, messages):
        """Add an entry at the end of `recent`."""
        cdef Seen* grown
        if self.count == self.room:
            grown = <Seen*>PyMem_Realloc(self.newest, max(4, 2 * self.room) * sizeof(Seen))
            if grown == NULL:
                raise MemoryError
            self.newest, self.room = grown, max(4, 2 * self.room)
        self.newest[self.count].first_sequence = first
        self.newest[self.count].last_sequence = last
        self.newest[self.count].offset = <uint64_t>offset
        self.newest[self.count].count = messages
        self.count += 1

    cdef int64_t highest(self) noexcept:
        return <int64_t>self.newest[self.count - 1].last_sequence if self.count else self.base

    cdef int note(self, Claim claim, int64_t offset, int64_t durable) except -1:
        self.remember(claim.first_sequence, claim.last_sequence, offset, claim.count)
        if self.count > 2 * RECENT and <int64_t>self.newest[RECENT].offset < durable:
            self.base = self.newest[RECENT - 1].last_sequence
            self.forget_oldest(RECENT)
        return 0

    # The offset of an entry appended before, or UNKNOWN.
    #
    # The sequences alone do not name an entry: what a sealed parent left may lack messages between them that went to
    # its neighbour (38, 44, 45 here), and a producer that resumes batches them anew (38, 43, 44, 45), as all of the
    # bucket's. Such a batch has at least the messages of any other entry from `first` to `last`: as many, the same.
    cdef int64_t find(self, Claim claim) noexcept:
        cdef Py_ssize_t i
        for i in range(self.count - 1, -1, -1):
            if self.newest[i].first_sequence == claim.first_sequence and (
                    self.newest[i].last_sequence == claim.last_sequence):
                return <int64_t>self.newest[i].offset if self.newest[i].count == claim.count else UNKNOWN
        return UNKNOWN


cdef class Lanes:
    """The lanes of one segment. `lanes` has at most `lanes_max`; where that is so is for the heir."""

    def __init__(self, Py_ssize_t lanes_max, uint64_t start, uint64_t end, bucket_ends):
        if not 0 < len(bucket_ends) <= 1024:
            raise InvalidArgumentError(f"a segment must have 1 to 1024 buckets, got {len(bucket_ends)}")
        self.lanes_max = lanes_max
        self.start = start
        self.end = end
        self.bucket_count = len(bucket_ends)
        for i, bucket_end in enumerate(bucket_ends):
            self.ends[i] = bucket_end
        self.lanes = {}
        self.refused = {}
        self.floors = {}
        self.plain = True

    def begin(self, key):
        """A lane that the heir puts into `lanes` under a key that is not there."""
        raise NotImplementedError

    def is_inherited(self, producer_id):
        """Whether others know something of the producer, so that its lanes do not begin empty."""
        raise NotImplementedError

    def area_of(self, claim, bucket):
        """The cells that an entry may have messages in, where not all buckets are plain."""
        raise NotImplementedError

    cpdef int bucket_of(self, Claim claim) except -1:
        """The index of the entry's bucket. Raises InvalidArgumentError when it spans two."""
        cdef int low = 0, high = self.bucket_count - 1, middle
        while low < high:
            middle = (low + high) // 2
            if claim.bucket_min <= self.ends[middle]:
                high = middle
            else:
                low = middle + 1
        if claim.bucket_max > self.ends[low]:
            ends = ", ".join([f"{self.ends[i]:04x}" for i in range(self.bucket_count)])
            raise InvalidArgumentError(
                f"an entry must belong to one bucket; buckets end at {ends}, got bucket "
                f"hashes {claim.bucket_min:04x}-{claim.bucket_max:04x}")
        return low

    cpdef object find(self, Claim claim):
        """The offset of a duplicate's original (UNKNOWN_OFFSET if forgotten); None for a new entry.

        Raises PartlyStoredError when only a part of it is new, StorageError when an earlier entry has to come first.
        """
        cdef int64_t low, high
        self.check_range(claim)
        cdef int bucket = self.bucket_of(claim)
        cdef tuple key = (claim.producer_id, claim.kind, bucket)
        cdef Lane lane = self.lanes.get(key)
        self.found = None
        if lane is None:
            if not self.is_inherited(claim.producer_id):
                self.admit(claim, bucket)
                return None
            lane = self.lane_for(key)
        area = None if self.plain else self.area_of(claim, bucket)
        if area is None:
            low = high = lane.highest()
        else:
            low, high = lane.reach(area)
        if <int64_t>claim.last_sequence <= low:
            return lane.find(claim)
        if <int64_t>claim.first_sequence <= high:
            error = PartlyStoredError(
                f"an entry holds sequences {claim.first_sequence} to {claim.last_sequence}, of which some up to "
                f"{high} are stored already; send only the others")
            error.sequence = claim.first_sequence
            raise error
        self.admit(claim, bucket)
        self.found, self.area, self.key, self.lane = claim, area, key, lane
        return None

    cpdef record(self, Claim claim, int64_t offset, int64_t durable):
        """The entry was appended at `offset`."""
        cdef tuple key
        cdef Lane lane
        cdef int bucket
        if claim is self.found:
            key, lane, area = self.key, self.lane, self.area
        else:
            bucket = self.bucket_of(claim)
            key = (claim.producer_id, claim.kind, bucket)
            lane = self.lanes.get(key)
            area = None if self.plain else self.area_of(claim, bucket)
        if lane is None:
            lane = self.lane_for(key)
        elif len(self.lanes) > self.lanes_max // 2:
            self.lanes[key] = self.lanes.pop(key, lane)
        if area is None:
            lane.note(claim, offset, durable)
        else:
            lane.push(claim, offset, durable, area)
        if self.refused:
            self.came_again((claim.producer_id, claim.kind & ORDER, key[2]), claim.last_sequence)
        if claim.floor:
            self.raise_floor(claim.producer_id, claim.floor)

    def came_again(self, key, last):
        """What failed up to this sequence is stored now."""
        left = [first for first in self.refused.pop(key, ()) if first > last]
        if left:
            self.refused[key] = left

    cpdef raise_floor(self, object producer_id, object floor):
        """Every message of the producer with a lower sequence is stored in some segment, as one of its entries says."""
        cdef dict floors = self.floors
        if floor > floors.get(producer_id, 0):
            floors.pop(producer_id, None)
            floors[producer_id] = floor
            if len(floors) > self.lanes_max:
                del floors[next(iter(floors))]

    cdef Lane lane_for(self, tuple key):
        cdef Lane lane = self.begin(key)
        return lane

    # G4: a message is stored in a segment whose range holds its hash. Keyless messages have none.
    cdef int check_range(self, Claim claim) except -1:
        if claim.kind & e.KEYED and not (
                self.start <= claim.segment_hash_min <= claim.segment_hash_max <= self.end):
            raise InvalidArgumentError(
                f"segment hashes of an entry must be in {self.start:04x}-{self.end:04x}, got "
                f"{claim.segment_hash_min:04x}-{claim.segment_hash_max:04x}")
        return 0

    # Raise StorageError when an earlier entry failed and has not come again.
    cdef int admit(self, Claim claim, int bucket) except -1:
        if not self.refused:
            return 0
        refused, first = self.refused.get((claim.producer_id, claim.kind & ORDER, bucket)), claim.first_sequence
        if refused and first > refused[0]:
            if first not in refused:
                refused.append(first)
            raise StorageError(
                f"the entry of sequence {first} is refused: the append of sequence {refused[0]} failed and must be "
                "sent again first, to keep the order")
        return 0
