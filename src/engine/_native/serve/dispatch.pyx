# cython: language_level=3
"""Routes the entries of a segment that several consumers share, bucket by bucket.

A *sharer* is one of those consumers, here a small number. A bucket has one *owner*, the sharer that receives its next
messages, and perhaps a *holder*, the sharer that was sent messages of it which are not acknowledged yet.

    one bucket, by offset:    acknowledged  |  sent, at the holder  |  due  |  next_offset: not read yet
                                            ^ first unacknowledged

An entry belongs to one bucket, by the bucket range in its header; its body is never read. The ledger keeps two lists of
runs of offsets per bucket (runs.pyx), nothing per key or message, and no entries: those are read from the log again
when they are due.

*Sending.* route() goes through the entries of blocks that were read, in the order of the log:

1. New entries (from `next_offset` on) become due in their bucket, without the offsets acknowledged before.
2. Where the bucket may be delivered, and its owner has credit for messages and bytes, what is due of the entry moves
   from `due` to `sent`. The entry goes into the owner's parcel (parcels.pyx), whole; its other offsets are named as
   ranges to skip. The last entry may overshoot the credit.
3. Otherwise it stays due. first_due() says from which offset the broker has to read again once there is credit.

*Handover.* A bucket may be delivered only while no sharer but its owner holds anything of it. assign() therefore only
changes the owner: the former one goes on holding what it was sent until it acknowledges that, or release() makes it due
again, before everything else of the bucket. This keeps the order of each key over changes of membership.

*Acknowledging.* A sharer acknowledges a position in each of its buckets; both lists are cut there. As the messages of
one bucket lie between those of others, what was cut are many ranges of offsets: acknowledge() returns them sorted and
merged, as individual acknowledgements for the subscription's cursor, together with the floor, the lowest offset that
any bucket still lacks. A sharer that is not the holder (or, where nothing is held, the owner) is refused.

`SharedOutlets` reads the blocks, has them routed and sends the parcels; its heir is `broker/delivery/shared.py`. Plain
Python for it, with the ledger, is `tests/reference/shared_reference.py`.
"""
from asyncio import get_running_loop

cimport cython
from cpython.array cimport array
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from engine._native.format.body cimport Lease, hold
from engine._native.format.entry cimport (
    AT_BUCKET_MAX, AT_BUCKET_MIN, AT_COUNT, AT_FIRST_OFFSET, AT_SEGMENT_ID, AT_SIZE, FAULT_NONE, Fault, check_header,
    load16, load32, load64, raise_fault, unknown,
)
from engine._native.format.invariants cimport engine_check
from engine._native.serve.blocks cimport Block
from engine._native.serve.cursors cimport Acked
from engine._native.serve.delivery cimport Outlet
from engine._native.serve.parcels cimport Parcels
from engine._native.serve.readers cimport BlockReader
from engine._native.serve.runs cimport Run, RunPool
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from engine.errors import CorruptionError, EngineError, InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX

cdef uint32_t BUCKETS_MAX = BUCKETS_PER_SEGMENT_MAX

cdef enum:
    BLOCKS_PER_READ = 2  # the size of one read, in blocks of one consumer: it is split among several


@cython.final
cdef class BucketLedger:
    """The unacknowledged messages of a shared segment, in each bucket: sent to a sharer, or due.

    `ends`: the segment's inclusive bucket ends, rising, the last 65535, as a buffer of uint16. `start`: the first
    offset to deliver. Raises InvalidArgumentError for other ends.

    `next_offset`: entries before it were routed. `due_runs`: runs of offsets that are due.
    Invariant: of a bucket, messages are sent in the order of their offsets, each to the bucket's owner, and only while
    no other sharer holds an earlier one. Checked by _hand_over(), with ENGINE_DEBUG=1.
    """

    def __cinit__(self, const uint16_t[::1] ends not None, uint64_t start):
        cdef uint32_t i
        _check_ends(ends)
        self.count = ends.shape[0]
        self.ends = <uint16_t*> PyMem_Malloc(self.count * sizeof(uint16_t))
        self.buckets = <Bucket*> PyMem_Calloc(self.count, sizeof(Bucket))
        if self.ends is NULL or self.buckets is NULL:
            raise MemoryError()
        for i in range(self.count):
            self.ends[i] = ends[i]
            self.buckets[i].owner = self.buckets[i].holder = -1
        self.lists, self.parcels = RunPool(), Parcels()
        self.next_offset = start

    def __dealloc__(self):
        PyMem_Free(self.ends)
        PyMem_Free(self.buckets)

    # -- owners --------------------------------------------------------------------------------------------------------

    def assign(self, const int32_t[::1] owners not None):
        """Set the owner of each bucket, -1 for none."""
        cdef uint32_t i
        if owners.shape[0] != self.count:
            raise InvalidArgumentError(f"{self.count} buckets need as many owners, got {owners.shape[0]}")
        for i in range(self.count):
            self.buckets[i].owner = owners[i]

    def release(self, int32_t sharer):
        """A sharer has detached: what it held is due again, before everything else of its buckets."""
        cdef uint32_t i
        cdef Bucket* bucket
        for i in range(self.count):
            bucket = &self.buckets[i]
            if bucket.sent.head and bucket.holder == sharer:
                self.due_runs += bucket.sent.count
                engine_check(_in_order(self.lists.pool, bucket), b"what was sent lies before what is due")
                self.lists.prepend(&bucket.due, &bucket.sent)

    def active(self, uint32_t bucket):
        """The sharer that may acknowledge in a bucket: its holder, else its owner; -1 for none."""
        if bucket >= self.count:
            raise InvalidArgumentError(f"a bucket must be below {self.count}, got {bucket}")
        return _active(&self.buckets[bucket])

    def held(self, int32_t sharer):
        """How many messages a sharer was sent and has not acknowledged."""
        cdef uint32_t i
        cdef uint64_t messages = 0
        for i in range(self.count):
            if self.buckets[i].holder == sharer:
                messages += self.buckets[i].sent.offsets
        return messages

    @property
    def withheld(self):
        """How many buckets wait: another sharer than their owner still holds messages of them."""
        cdef uint32_t i
        cdef int withheld = 0
        for i in range(self.count):
            if self.buckets[i].owner >= 0 and not _deliverable(&self.buckets[i]):
                withheld += 1
        return withheld

    @property
    def runs(self):
        """How many runs of offsets are kept in memory."""
        return self.lists.used

    @property
    def floor(self):
        """The offset below which everything routed is acknowledged."""
        cdef uint32_t i
        cdef uint64_t first, floor = self.next_offset
        for i in range(self.count):
            if _first(self.lists.pool, &self.buckets[i], &first) and first < floor:
                floor = first
        return floor

    # -- sending -------------------------------------------------------------------------------------------------------

    cpdef int64_t first_due(self, const int64_t[::1] messages, const int64_t[::1] sizes) except -2:
        """The lowest offset due to a sharer that has credit for messages and bytes (both by sharer); -1 for none."""
        cdef uint32_t i
        cdef Bucket* bucket
        cdef uint64_t first = unknown()
        if not self.due_runs:
            return -1
        for i in range(self.count):
            bucket = &self.buckets[i]
            if bucket.due.head and self.lists.pool[bucket.due.head].first < first:
                if _deliverable(bucket) and _has_credit(bucket.owner, messages, sizes):
                    first = self.lists.pool[bucket.due.head].first
        return -1 if first == unknown() else first

    def route(self, blocks, int64_t[::1] messages not None, int64_t[::1] sizes not None, list unacknowledged=None):
        """Decide what to send now of blocks that were read, and to which sharer; what is new in them becomes due.

        blocks: whole entries back to back, whose checksums the reader has verified (headers are checked again here), as
        a buffer or as a list of buffers that follow each other.
        messages, sizes: the credit of each sharer, reduced here by what is sent; the last entry may overshoot.
        unacknowledged: of the new offsets, the rising runs [start, stop) to deliver; None: all of them.

        Returns (sharer, payload, messages, skip) for each sharer that is sent something: its entries as a buffer or as
        a list of buffers, how many of their messages are for it, and the inclusive ranges of offsets that are not, or
        None. Raises CorruptionError naming the entry whose range lies in two buckets, or before which offsets are
        missing; the ledger must not be used after that.
        """
        if messages.shape[0] != sizes.shape[0]:
            raise InvalidArgumentError(
                f"credit must name as many sharers for messages as for bytes, got {messages.shape[0]} and "
                f"{sizes.shape[0]}"
            )
        return self.route_all(blocks if isinstance(blocks, list) else [blocks], messages, sizes, unacknowledged)

    cdef list route_all(self, list sources, int64_t[::1] messages, int64_t[::1] sizes, list unacknowledged):
        cdef list leases = [hold(block) for block in sources]
        cdef dict skips = {}
        cdef uint32_t number
        cdef Py_ssize_t run = 0
        self.parcels.begin(messages.shape[0])
        for number in range(len(leases)):
            run = self.route_block(leases[number], number, messages, sizes, unacknowledged, run, skips)
        return self.parcels.deliver(sources, leases, skips)

    cdef Py_ssize_t route_block(
        self, Lease lease, uint32_t number, int64_t[::1] messages, int64_t[::1] sizes, list unacknowledged,
        Py_ssize_t run, dict skips,
    ) except -1:
        cdef const uint8_t* p
        cdef Py_ssize_t at = 0, size
        cdef uint64_t first, last
        cdef Bucket* bucket
        cdef int32_t owner
        cdef int64_t taken
        cdef bint ready
        while at < lease.size:
            p = lease.start + at
            bucket = self.find(p, lease.size - at)
            size = load32(p + AT_SIZE)
            first = load64(p + AT_FIRST_OFFSET)
            last = first + load32(p + AT_COUNT) - 1
            owner = bucket.owner
            ready = _deliverable(bucket) and _has_credit(owner, messages, sizes)
            taken = 0
            if ready and first == self.next_offset and unacknowledged is None and not bucket.due.head:
                taken = self.give_new(bucket, first, last)
            else:
                if last >= self.next_offset:
                    run = self.add_new(bucket, first, last, unacknowledged, run)
                if ready and bucket.due.head and first <= self.lists.pool[bucket.due.head].first <= last:
                    taken = self.take(bucket, first, last, skips)
            engine_check(_in_order(self.lists.pool, bucket), b"what was sent lies before what is due")
            if taken:
                self.parcels.pack(owner, number, at, at + size, taken)
                messages[owner] -= taken
                sizes[owner] -= size
            at += size
        return run

    cdef Bucket* find(self, const uint8_t* p, Py_ssize_t room) except NULL:
        cdef Fault fault = check_header(p, room)
        cdef uint32_t bucket
        if fault != FAULT_NONE:
            raise_fault(fault, unknown(), unknown())
        bucket = bucket_of(self.ends, self.count, load16(p + AT_BUCKET_MIN))
        if self.ends[bucket] < load16(p + AT_BUCKET_MAX):
            _refuse(p, bucket, self.ends[bucket])
        return &self.buckets[bucket]

    cdef Py_ssize_t add_new(
        self, Bucket* bucket, uint64_t first, uint64_t last, list unacknowledged, Py_ssize_t run
    ) except -1:
        cdef uint64_t start, stop
        if first > self.next_offset:
            raise CorruptionError(f"offsets {self.next_offset} to {first - 1} are missing before an entry")
        first, self.next_offset = self.next_offset, last + 1
        if unacknowledged is None:
            self.add(bucket, first, last)
            return run
        while run < len(unacknowledged):
            start, stop = unacknowledged[run]
            if start <= last and max(start, first) < stop:
                self.add(bucket, max(start, first), min(stop - 1, last))
            if stop > last:
                break
            run += 1
        return run

    cdef int64_t give_new(self, Bucket* bucket, uint64_t first, uint64_t last) except -1:
        _hand_over(self.lists.pool, bucket, first)
        self.lists.push(&bucket.sent, first, last)
        bucket.holder, self.next_offset = bucket.owner, last + 1
        return last + 1 - first

    cdef int add(self, Bucket* bucket, uint64_t first, uint64_t last) except -1:
        self.due_runs += self.lists.push(&bucket.due, first, last)
        return 0

    cdef int64_t take(self, Bucket* bucket, uint64_t first, uint64_t last, dict skips) except -1:
        cdef Run* run
        cdef uint64_t upto, at = first, moved = bucket.sent.offsets
        _hand_over(self.lists.pool, bucket, self.lists.pool[bucket.due.head].first)
        while bucket.due.head and self.lists.pool[bucket.due.head].first <= last:
            run = &self.lists.pool[bucket.due.head]
            upto = min(run.last, last)
            if run.first > at:
                skips.setdefault(bucket.owner, []).append([at, run.first - 1])
            first, at = run.first, upto + 1
            if upto == run.last:
                self.lists.pop(&bucket.due)
                self.due_runs -= 1
            else:
                run.first = upto + 1
                bucket.due.offsets -= upto + 1 - first
            self.lists.push(&bucket.sent, first, upto)
        if at <= last:
            skips.setdefault(bucket.owner, []).append([at, last])
        bucket.holder = bucket.owner
        return bucket.sent.offsets - moved

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def acknowledge(self, int32_t sharer, list positions):
        """Acknowledge everything routed below the position, for each (bucket, position).

        Returns (floor, ranges, refused): everything routed below `floor` is acknowledged now; `ranges` are the rising
        ranges of offsets that this call acknowledged and that end above it, as offset_set() reads them; `refused` are
        the buckets with something unacknowledged below the position in which `sharer` may not acknowledge (active()).
        """
        cdef uint32_t index
        cdef uint64_t position, first
        cdef Bucket* bucket
        cdef list refused = []
        self.lists.forget_trimmed()
        for index, position in positions:
            if index >= self.count:
                raise InvalidArgumentError(f"a bucket must be below {self.count}, got {index}")
            bucket = &self.buckets[index]
            if not _first(self.lists.pool, bucket, &first) or first >= position:
                continue
            if _active(bucket) != sharer:
                refused.append(index)
                continue
            self.lists.trim(&bucket.sent, position)
            self.due_runs -= self.lists.trim(&bucket.due, position)
        floor = self.floor
        return floor, self.lists.merged(floor), refused

    def beyond(self, list positions):
        """Whether some (bucket, position) names entries that were not routed."""
        cdef uint64_t position
        for _, position in positions:
            if position > self.next_offset:
                return True
        return False

    cpdef int forget(self, uint64_t offset) except -1:
        """Drop everything below the offset: it was deleted from the log."""
        cdef uint32_t i
        for i in range(self.count):
            self.lists.forget_trimmed()
            self.lists.trim(&self.buckets[i].sent, offset)
            self.due_runs -= self.lists.trim(&self.buckets[i].due, offset)
        self.next_offset = max(self.next_offset, offset)
        return 0

    cpdef int go_on(self, uint64_t offset) except -1:
        """Skip the offsets from `next_offset` to this one for every consumer: no message has them."""
        self.next_offset = max(self.next_offset, offset)
        return 0

    def unacknowledged(self, block, const uint64_t[::1] positions not None, uint64_t start):
        """(bucket, start, stop) of each entry of a block from `start` on, below its bucket's position."""
        cdef Lease lease = hold(block)
        cdef const uint8_t* p
        cdef Py_ssize_t at = 0
        cdef uint64_t first, stop
        cdef uint32_t index
        cdef list runs = []
        while at < lease.size:
            p = lease.start + at
            index = self.find(p, lease.size - at) - self.buckets
            first = load64(p + AT_FIRST_OFFSET)
            stop = min(first + load32(p + AT_COUNT), positions[index])
            if max(first, start) < stop:
                runs.append((index, max(first, start), stop))
            at += load32(p + AT_SIZE)
        return runs


cdef class SharedOutlets:
    """Loop thread only. Members are sharers of the ledger, by number."""

    def __init__(self, subscription, BucketLedger ledger not None, reader_of, *, uint64_t due_runs_max,
                 uint64_t runs_max, int64_t unsent_max):
        """`reader_of(step)`: the reader. `due_runs_max`, `runs_max`: runs in the ledger, above which nothing new is
        read. `unsent_max`: bytes, for a connection that is full, while other members go on.
        """
        self.subscription, self.hosted, self.acked = subscription, subscription.hosted, subscription.cursor
        self.ledger, self.members, self.asked = ledger, [], ledger.next_offset
        self.due_runs_max, self.runs_max, self.unsent_max = due_runs_max, runs_max, unsent_max
        self.messages = self.sizes = array("q")  # of no members
        self.reader = reader_of(self.step)

    def pump(self):
        """Send until credit, room or durable messages run out."""
        if self.pumping or self.any_member() is None:
            return
        self.pumping = True
        try:
            self.pump_all()
        except EngineError as e:
            self.close(e)
        finally:
            self.pumping = False

    cdef int pump_all(self) except -1:
        cdef BlockReader reader = self.reader
        cdef Block block
        cdef int64_t wanted
        while self.measure():
            wanted = self.wanted()
            if wanted < 0:
                break
            if reader.pending is not None:
                if not reader.waiting or wanted == <int64_t> self.ledger.next_offset:
                    return 0
                reader.stop()  # it waits for new messages, and others are due
            self.asked = wanted
            block = reader.next_block(wanted, self.read_size())
            if block is None:
                break
            self.send_all(self.route(block))
        if reader.pending is None:
            self.at_end()
        return 0

    cdef int at_end(self) except -1:
        segment = self.hosted.segment
        if segment.sealed:
            self.subscription.check_drained()
        elif self.routed() >= <int64_t> segment.durable_offset and not self.is_crowded():
            self.reader.wait_at(self.ledger.next_offset)
        return 0

    def step(self, block):
        """A read or a wait has ended. The next block is read from disk while this one is sent."""
        cdef int64_t wanted
        cdef list parcels
        if block is None:
            self.pump()
            return
        try:
            self.measure()
            parcels = self.route(block)
        except EngineError as e:
            self.close(e)
            return
        wanted = self.wanted()
        if 0 <= wanted < <int64_t> self.hosted.segment.durable_offset:
            self.asked = wanted
            self.reader.read_ahead(wanted, self.read_size())
        if self.reader.pending is not None:  # it begins in the next turn of the loop, before this block is sent
            get_running_loop().call_soon(self._send_read, parcels)
        else:
            self._send_read(parcels)

    def _send_read(self, list parcels not None):
        self.send_all(parcels)
        self.pump()

    cdef object any_member(self):
        for member in self.members:
            if member is not None:
                return member
        return None

    cdef bint measure(self) except -1:
        cdef Py_ssize_t number, count = len(self.members)
        cdef Outlet outlet
        cdef bint writable, ready = False
        if self.messages.shape[0] != count:
            self.messages, self.sizes = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        for number in range(count):
            outlet = self.members[number]
            self.messages[number] = self.sizes[number] = 0
            if outlet is None or outlet.closed or outlet.messages_credit <= 0 or outlet.bytes_credit <= 0:
                continue
            writable = outlet.connection.writable
            ready = ready or writable
            if writable or outlet.connection.has_room(self.unsent_max):
                self.messages[number], self.sizes[number] = outlet.messages_credit, outlet.bytes_credit
        return ready

    cdef int64_t wanted(self) except -2:
        cdef int64_t due = self.ledger.first_due(self.messages, self.sizes)
        cdef Py_ssize_t number
        if due >= 0:
            return due
        if self.is_crowded():
            return -1
        for number in range(self.messages.shape[0]):
            if self.messages[number] > 0:
                return self.routed()
        return -1

    cdef int64_t routed(self) except -1:
        gaps = self.hosted.segment.gaps
        if gaps.runs:
            self.ledger.go_on(gaps.skip(self.ledger.next_offset))
        return self.ledger.next_offset

    cdef int64_t read_size(self) except -1:
        cdef int64_t room = 0, takers = 0
        cdef Py_ssize_t number
        for number in range(self.sizes.shape[0]):
            room += self.sizes[number]
            takers += self.sizes[number] != 0
        takers = min(max(takers, 1), <int64_t> BLOCKS_PER_READ)
        return min(max(room, 1), takers * <int64_t> self.any_member().connection.block_size)

    cdef bint is_crowded(self) except -1:
        cdef bint crowded = self.ledger.due_runs >= self.due_runs_max or self.ledger.lists.used >= self.runs_max
        if crowded and not self.crowded:
            self.paused()
        self.crowded = crowded
        return crowded

    cpdef list route(self, Block block):
        """(member, payload, salt, messages, skip) for each that is sent something of a block, read at `asked`.
        """
        cdef BucketLedger ledger = self.ledger
        cdef uint64_t new
        cdef list runs = None
        if <int64_t> block.first_offset > self.asked:  # retention has deleted what was before, or it is a gap
            ledger.forget(block.first_offset)
        new = max(block.first_offset, ledger.next_offset)
        if new < block.next_offset and not self.all_free(new):
            runs = self.free_runs(new, block.next_offset)
        return [
            (self.members[number], payload, block.salt, messages, skip)
            for number, payload, messages, skip in ledger.route_all(block.parts, self.messages, self.sizes, runs)
        ]

    # Whether no message from an offset on is acknowledged, in an open transaction or hidden, as seen at a glance.
    cdef bint all_free(self, uint64_t start) except -1:
        for taken in (self.acked.above, self.subscription.pending.offsets):
            if taken and <uint64_t> taken.max() >= start:
                return False
        if <uint64_t> self.acked.position > start:
            return False
        return self.hosted.transactions is None and not self.hosted.segment.gaps.runs

    cdef int send_all(self, list parcels) except -1:
        cdef Outlet outlet
        for outlet, payload, salt, messages, skip in parcels:
            if not outlet.closed:  # else its messages are due to another member by now
                outlet.send(payload, salt, messages, skip, None)
        return 0

    # What an heir does

    def free_runs(self, start, stop):
        """Runs of the new offsets [start, stop) to deliver; None: all."""
        raise NotImplementedError

    def paused(self):
        """So much is due or unacknowledged that nothing new is read for now."""
        raise NotImplementedError

    def close(self, error):
        """Close all members with an error."""
        raise NotImplementedError


# The lowest unacknowledged offset of a bucket; False when there is none.
cdef inline bint _first(const Run* pool, const Bucket* bucket, uint64_t* first) noexcept nogil:
    cdef uint32_t head = bucket.sent.head if bucket.sent.head else bucket.due.head
    if head:
        first[0] = pool[head].first
    return head != 0


cdef inline int32_t _active(const Bucket* bucket) noexcept nogil:
    return bucket.holder if bucket.sent.head else bucket.owner


cdef inline bint _deliverable(const Bucket* bucket) noexcept nogil:
    return bucket.owner >= 0 and (not bucket.sent.head or bucket.holder == bucket.owner)


cdef inline bint _in_order(const Run* pool, const Bucket* bucket) noexcept nogil:
    return not bucket.sent.head or not bucket.due.head or pool[bucket.sent.tail].last < pool[bucket.due.head].first


# Check that the owner may be sent what begins at `first`.
cdef inline void _hand_over(const Run* pool, const Bucket* bucket, uint64_t first) noexcept nogil:
    engine_check(_deliverable(bucket), b"a bucket is sent to its owner, while no other sharer holds anything of it")
    engine_check(
        not bucket.sent.head or pool[bucket.sent.tail].last < first, b"a bucket is sent in the order of its offsets"
    )


cdef inline bint _has_credit(int32_t owner, const int64_t[::1] messages, const int64_t[::1] sizes) noexcept:
    return owner < messages.shape[0] and messages[owner] > 0 and sizes[owner] > 0


cdef int _check_ends(const uint16_t[::1] ends) except -1:
    cdef Py_ssize_t i, buckets = ends.shape[0]
    cdef bint rise = True
    for i in range(1, buckets):
        rise = rise and ends[i - 1] < ends[i]
    if not 1 <= buckets <= BUCKETS_MAX or not rise or ends[buckets - 1] != 0xFFFF:
        raise InvalidArgumentError(
            f"a segment must have 1 to {BUCKETS_MAX} buckets whose ends rise, the last to 65535, got {buckets} ends, "
            f"the last {ends[buckets - 1] if buckets else None}"
        )
    return 0


cdef int _refuse(const uint8_t* p, uint32_t bucket, uint16_t end) except -1:
    raise CorruptionError(
        f"segment {load64(p + AT_SEGMENT_ID)}, offset {load64(p + AT_FIRST_OFFSET)}: the entry's bucket hashes "
        f"{load16(p + AT_BUCKET_MIN)}..{load16(p + AT_BUCKET_MAX)} leave bucket {bucket}, which ends at {end}"
    )
