# cython: language_level=3
"""Group commit of one segment: what repeats with each append and each commit.

    add() ──► the open group ──► at the end of the turn: begin() ──► next_step() ──► a primary job
                                                                                        │
    each group's waiters are told, readers woken ◄── make_durable() ◄── primary_done() ◄┘

The rules are in `storage/commit/committer.py`, whose class derives from this one: it rolls files, and handles failures
and the end. A job is started by `active.write()`, and comes back on the loop. Plain Python for the choice of the next
job is `tests/reference/commits_reference.py`.
"""
from asyncio import get_running_loop

from engine import limits
from engine._native.serve.groups import join_fresh, place
from engine._native.serve.log import entries as claims_of
from engine.errors import EngineError, InvalidArgumentError

from engine._native.serve.groups cimport Chunk, Group, GroupQueue
from engine._native.serve.lanes cimport Lanes
from engine._native.serve.log cimport Claim
from engine._native.serve.meters cimport Marks
from engine._native.serve.tails cimport Piece, Pieces, TailCache
from engine._native.serve.waiters cimport Waiters
from libc.stdint cimport int64_t, uint32_t, uint64_t

AHEAD_MIN = 256 * limits.KIB  # a smaller group waits for the running sync, and is written together with its own sync
PAD_GROUP_MAX = 32 * limits.KIB  # behind larger groups no zeros are written
SMALL_HANDED_MAX = 16  # groups that a backing has not stored yet, of which a small one may be the next

cdef uint64_t AHEAD = AHEAD_MIN
cdef uint64_t PADDED = PAD_GROUP_MAX
cdef Py_ssize_t HANDED_MAX = SMALL_HANDED_MAX
cdef Py_ssize_t BLOCK = limits.READ_BLOCK_SIZE
cdef Py_ssize_t INDEX_STEP = limits.LOG_INDEX_BYTES_STEP


cdef class FileEnd:
    """What of ActiveFile is done with each commit: groups are written, one behind the other, at their position."""

    def __init__(self, handles, post, make_job, zeros_ahead):
        """`handles`: of open files. `post(work, done)`: to a worker. `make_job(handle, buffers, position, zeros,
        syncs)`: the work. `zeros_ahead(end)`: how many zeros go behind so many bytes.
        """
        self.handles = handles
        self.post = post
        self.make_job = make_job
        self.zeros_ahead = zeros_ahead

    def write(self, list groups not None, bint pads, bint syncs, done):
        """Write groups and sync. OSError: the write failed; SyncFailed: the sync.

        `pads`: write zeros behind the groups, so that the next syncs need not lengthen the file.
        """
        self.start(groups, pads, syncs, done)

    cdef int start(self, list groups, bint pads, bint syncs, object done) except -1:
        cdef Write write = Write.__new__(Write)
        cdef list buffers = []
        cdef uint64_t position = 0
        cdef Group group
        cdef Chunk chunk
        file = self.file
        for group in groups:
            for chunk in group.chunks:
                buffers.append(chunk.data)
        if groups:
            position = (<Group>groups[0]).position
            group = groups[len(groups) - 1]
            write.stops = group.position + group.size
        try:
            handle = self.handles.pin(file)
        except OSError as e:
            get_running_loop().call_soon(done, e)
            return 0
        write.end, write.file, write.done = self, file, done
        write.zeros = self.zeros_ahead(write.stops) if pads else 0
        write.job = self.make_job(handle, buffers, position, write.zeros, syncs)
        work = self.reopening(file, handle, write.job) if groups and file.closing is not None else write.job
        self.post(work, write)
        return 0

    # What an heir does

    def reopening(self, file, handle, job):
        """Work that takes an orderly close of the file back before the job."""
        raise NotImplementedError

    def hand_over(self, Group group, done):
        """Hand a group that was written to the backing."""
        raise NotImplementedError


cdef class Write:
    """A write that is under way."""

    def __call__(self, result, error):
        """It has ended."""
        cdef FileEnd end = self.end
        cdef uint64_t allocated = self.stops
        end.handles.unpin(self.file)
        if error is None:
            if self.zeros and self.job.padded:
                allocated += self.zeros
            if allocated > <uint64_t>self.file.allocated:
                self.file.allocated = allocated
        self.done(error)


cdef class Counters:
    """Counted since the segment was opened."""


cdef class Primary:
    """The primary job that runs."""


cdef class Handed:
    """Called with the outcome of a group that the backing was handed."""

    def __call__(self, error):
        """None: it is stored there."""
        self.group.ended, self.group.error = True, error
        self.commit.settle()


cdef class CommitTurns:
    """Loop thread only."""

    def __init__(self, GroupQueue groups not None, FileEnd active not None, segment, metrics, monotonic, lease,
                 *, bint by_sync, bint by_interval, bint backed, uint64_t commit_bytes_max):
        """`by_sync`, `by_interval`, `backed`: the durability is "fsync", "interval", "object"; else it is "os"."""
        self.groups = groups
        self.active = active
        self.counters = Counters()
        self.marks = Marks()
        self.segment = segment
        self.metrics = metrics
        self.monotonic = monotonic
        self.lease = lease
        self.by_sync = by_sync
        self.by_interval = by_interval
        self.backed = backed
        self.commit_bytes_max = commit_bytes_max
        self.durable_offset = groups.next_offset
        self.running = True
        self.idle = []

    # Appends

    def add(self, data not None, list claims not None, uint32_t term, int64_t time_ms):
        """Assign offsets to whole entries; the group that they are in."""
        return self.enter(data, claims, term, time_ms)

    cdef Group enter(self, object data, list claims, uint32_t term, int64_t time_ms):
        cdef GroupQueue groups = self.groups
        cdef uint64_t offset = groups.next_offset, position = groups.position, messages = 0
        cdef Claim claim
        cdef Group group
        for claim in claims:
            messages += claim.count
        group = groups.join(data, messages, term, time_ms, self.active.synced_offset)
        if group is None:
            groups.go_on_in(self.segment.plan_file(offset))
            position = groups.position
            group = groups.join(data, messages, term, time_ms, self.active.synced_offset)
        file = group.file
        index = file.index
        if position >= <uint64_t>index.due:
            index.add(offset, position, time_ms)
        if len(data) > INDEX_STEP:
            for claim in claims:
                index.add(offset, position + claim.position, time_ms)
                offset += claim.count
        file.last_time_ms = time_ms
        if not self.scheduled:
            self.schedule()
        return group

    def schedule(self):
        """Begin what may be begun at the end of this turn of the loop, so that appends of one turn share a commit."""
        if not self.scheduled and self.running:
            self.scheduled = True
            get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self):
        self.scheduled = False
        self.begin()

    # Which job is next

    def pump(self):
        """Start what may be started."""
        self.begin()

    cdef int begin(self) except -1:
        if not self.may_begin():
            return 0
        if self.primary is None:
            step = self.next_step()
            if step == ROLL:
                self.roll(self.groups.head_group().file, None)
            elif step != NOTHING:
                self.start_primary(step == WRITE)
        if self.primary is not None and self.may_write_ahead():
            self.active.start([self.groups.begin_ahead()], False, False, self.ahead_done)
        if self.idle:
            self.check_idle()
        return 0

    def may_write(self):
        """Whether jobs may be started: none has failed, and the lease, if there is one, is held."""
        return self.may_begin()

    cdef bint may_begin(self) except -1:
        return self.running and self.failure is None and not self.is_over()

    def lapsed(self):
        """Whether the lease is over; then all that waits has failed. Asked after each sync, before it is published."""
        return self.is_over()

    cdef bint is_over(self) except -1:
        return self.lease is not None and not self.lease.held and self.lapses()

    # The next step while no primary job runs.
    cdef Step next_step(self) except *:
        cdef GroupQueue groups = self.groups
        cdef Group head = groups.head_group()
        if head is not None and head.file is not self.active.file:
            if groups.written:
                return SYNC
            if groups.ahead is not None or groups.handed:
                return NOTHING
            return SYNC if self.active.file is not None and self.durable_offset > self.active.synced_offset else ROLL
        if head is not None and groups.ahead is None and not (groups.written and head.size >= AHEAD):
            return WRITE if not self.backed or self.may_hand_over(head) else NOTHING
        return SYNC if groups.written or self.is_sync_due() else NOTHING

    cdef bint is_sync_due(self) except -1:
        unsynced = self.sync_wanted and self.durable_offset > self.active.synced_offset
        return self.active.file is not None and (unsynced or self.witness_sync_wanted)

    cdef bint may_write_ahead(self) except -1:
        cdef GroupQueue groups = self.groups
        cdef Group head = groups.head_group()
        if head is None or groups.ahead is not None or self.primary.pads or head.file is not self.active.file:
            return False
        if self.backed or (self.by_sync and head.size < AHEAD) or self.active.file.closing is not None:
            return False
        return groups.unsynced() + head.size <= self.commit_bytes_max

    # Whether the next group may follow those that the backing has not stored yet: at once if it is large or takes no
    # more, or the end of all is waited for; else once others have had the time to join it, and few are on their way.
    cdef bint may_hand_over(self, Group head) except -1:
        cdef GroupQueue groups = self.groups
        cdef Group group
        cdef uint64_t size = head.size
        if not groups.handed:
            return True
        for group in groups.handed:
            if group.error is not None:
                return False
            size += group.size
        if size > self.commit_bytes_max:
            return False
        if head.size >= AHEAD or groups.queued or self.idle:
            return True
        if len(groups.handed) >= HANDED_MAX:
            return False
        if not self.small_wanted:
            self.write_later()
        return self.small_wanted

    # Jobs

    cdef int start_primary(self, bint writes) except -1:
        cdef GroupQueue groups = self.groups
        cdef Primary job = Primary.__new__(Primary)
        cdef Group last
        file = self.active.file
        job.written = groups.take_for_primary(writes)
        self.small_wanted = False
        job.syncs = self.by_sync or not job.written
        if job.written and not self.backed and (<Group>job.written[0]).size <= PADDED:
            last = job.written[0]
            job.pads = last.position + last.size > <uint64_t>file.allocated
        if groups.covered:
            last = groups.covered[len(groups.covered) - 1]
            job.offset, job.position = last.next_offset, last.position + last.size
        else:
            job.offset, job.position = self.durable_offset, file.end_position
        if job.syncs:
            self.sync_wanted = self.witness_sync_wanted = False
        job.begun = self.monotonic()
        self.primary = job
        self.active.start(job.written, job.pads, job.syncs, self.primary_done)
        return 0

    def primary_done(self, error):
        """The primary job has ended."""
        cdef Primary job = self.primary
        cdef list covered = self.groups.covered
        self.primary, self.groups.covered = None, []
        if error is not None:
            self.primary_failed(job, covered, error)
        else:
            if job.syncs:
                self.counters.syncs += 1
                self.metrics.sync_s.observe(<double>self.monotonic() - job.begun)
            if job.syncs:
                self.active.synced_offset, self.active.synced_position = job.offset, job.position
                self.synced()
            if self.backed:
                self.hand_over(covered)
            elif self.by_sync:
                self.make_durable(covered)
            elif job.written:
                self.make_durable(job.written)
                self.make_durable(self.groups.take_written())
        self.go_on()

    cdef int hand_over(self, list groups) except -1:
        cdef Handed handed
        cdef Group group
        for group in groups:
            handed = Handed.__new__(Handed)
            handed.commit, handed.group = self, group
            self.groups.handed.append(group)
            self.active.hand_over(group, handed)
        return 0

    # What the backing has stored is durable, once all before it is.
    cdef int settle(self) except -1:
        cdef GroupQueue groups = self.groups
        cdef list stored = [], unknown
        cdef Group group
        for group in groups.handed:
            if not group.ended or group.error is not None:
                break
            stored.append(group)
        if stored:
            del groups.handed[:len(stored)]
            group = stored[len(stored) - 1]
            self.active.synced_offset, self.active.synced_position = group.next_offset, group.position + group.size
            self.make_durable(stored)
        group = groups.handed[0] if groups.handed else None
        if group is not None and group.ended:
            unknown, groups.handed = groups.handed, []
            self.backing_ended(group.error, unknown)
        return self.go_on()

    def proceed(self):
        """A job has ended, and what it did is noted: what follows from it."""
        self.go_on()

    cdef int go_on(self) except -1:
        if self.stopped_by is not None:
            self.fail_rest(self.stopped_by)
        elif self.failure is None:
            self.begin()
        elif self.primary is None and self.groups.ahead is None and not self.groups.handed:
            self.clean_up(self.failure)
        return 0

    def publish(self, list groups not None):
        """These are durable, as the mode calls it; all before them are."""
        self.make_durable(groups)

    cdef int make_durable(self, list groups) except -1:
        cdef Group group
        cdef uint64_t size = 0, appends = 0
        if not groups:
            return 0
        if self.is_over():
            self.refuse(groups)
            return 0
        group = groups[len(groups) - 1]
        file = group.file
        self.durable_offset = group.next_offset
        file.end_offset, file.end_position = group.next_offset, group.position + group.size
        if group.position + group.size >= <uint64_t>file.count_at:
            self.active.pages.written(file)
        # One commit, counted before its waiters are resumed.
        for group in groups:
            size += group.size
            appends += <size_t>len(group.waiters)
        self.counters.commits += 1
        self.counters.commit_bytes += size
        self.metrics.trouble = None
        self.metrics.commit_bytes.observe(size)
        self.metrics.commit_appends.observe(appends)
        self.marks.note((<Group>groups[0]).first_offset, self.monotonic())
        for group in groups:
            self.segment.group_durable(group)
            group.succeed()
        if self.by_interval and self.durable_offset > self.active.synced_offset:
            self.sync_later()
        return 0

    # What an heir does

    def roll(self, file, abandoned):
        """Create the file, and go on there. `abandoned`: the file before, after a failed sync."""
        raise NotImplementedError

    def synced(self):
        """The file is on the medium up to `active.synced_offset`."""
        raise NotImplementedError

    def sync_later(self):
        """With durability "interval": something is durable and not synced."""
        raise NotImplementedError

    def write_later(self):
        """With a backing: a small group waits for others, while what went before it is not stored yet."""
        raise NotImplementedError

    def backing_ended(self, error, list groups):
        """The backing has ended: it may have these groups or not."""
        raise NotImplementedError

    def primary_failed(self, job, list covered, error):
        """The primary job has ended with an error. `covered`: what it was to make durable."""
        raise NotImplementedError

    def ahead_done(self, error):
        """The ahead job has ended."""
        raise NotImplementedError

    def clean_up(self, failure):
        """A job has failed, and no job runs any more."""
        raise NotImplementedError

    def lapses(self):
        """The lease is over: fail all that waits. Whether it does count as over."""
        raise NotImplementedError

    def refuse(self, list groups):
        """Fail groups that are written, and not confirmed: the lease is over."""
        raise NotImplementedError

    def fail_rest(self, error):
        """Fail what no job that runs will confirm: nothing is started any more."""
        raise NotImplementedError

    def check_idle(self):
        """Resume what waits until nothing is under way, if nothing is."""
        raise NotImplementedError


cdef class Appends:
    """Counted since the segment was opened."""


cdef class LogEnd:
    """One segment, as appends and commits see it: what repeats with each. Its heir is `storage/segment.py`."""

    def __init__(self, Lanes dedup not None, TailCache cache not None, Pieces tail not None, Waiters waiters not None,
                 clock, id_of):
        """`clock`: the wall clock. `id_of(name)`: a producer's id in entries. `waiters`: readers at the end."""
        self.dedup = dedup
        self.cache = cache
        self.tail = tail
        self.waiters = waiters
        self.clock = clock
        self.id_of = id_of
        self.appended = Appends()

    def commit_with(self, CommitTurns commit not None):
        """What makes its appends durable; once, before the first."""
        self.commit = commit

    def append_for(self, waiter, entries, str producer, term, transaction=None, *, bint several=False):
        """append() of bytes, whose result or error `waiter` gets in place of a future.

        `several`: each entry is in the transaction that its header names. The places that the entries get once they are
        durable; None: the waiter has an error.
        """
        try:
            if (self.sealed or self.seals or self.closed or self.failed is not None or self.lease is not None
                    or term is None or <uint64_t>term != self.term):
                self.check_open(term)
            named = self.id_of(producer) if producer else None
            return self.enter(entries, claims_of(entries, True, transaction, named, several), waiter)
        except EngineError as e:
            waiter.set_exception(e)
            return None

    cdef list enter(self, object data, list claims, object waiter):
        cdef CommitTurns commit = self.commit
        cdef GroupQueue groups = commit.groups
        cdef uint64_t start = groups.next_offset, messages = 0
        cdef int64_t now_ms
        cdef list places, fresh
        cdef Claim claim
        for claim in claims:
            messages += claim.count
        if messages > groups.file_messages_max:
            raise InvalidArgumentError(f"an append must have at most {groups.file_messages_max} messages")
        try:
            places, fresh = place(self.dedup, claims, start, commit.durable_offset)
        except EngineError:
            self.dedup.undo(start)
            raise
        if len(fresh) < len(claims):
            self.appended.duplicates += len(claims) - len(fresh)
            if not fresh:
                self.acknowledge_duplicates(waiter, places)
                return places
            data, fresh = join_fresh(data, fresh)
        now_ms = self.clock.time_ms()
        if now_ms > self.newest_ms:
            self.newest_ms = now_ms
        commit.enter(data, fresh, self.term, self.newest_ms).waiters.append((waiter, places))
        self.appended.messages += groups.next_offset - start
        self.appended.entries += len(fresh)
        self.appended.size += len(data)
        return places

    def group_durable(self, Group group not None):
        """Keep its bytes for tailing readers, and wake waiting ones."""
        cdef Chunk chunk
        for chunk in group.chunks:
            self.cache.keep(self.tail, Piece(group.file, chunk.first_offset, chunk.next_offset, chunk.data))
        self.waiters.wake_below(group.next_offset)

    # Readers

    def read_with(self, reader, list files not None):
        """What reads what is not in memory, and the segment's files, oldest first; once, before the first read."""
        self.reader = reader
        self.files = files

    @property
    def first_offset(self):
        """The oldest offset that is stored."""
        return self.oldest()

    cdef int64_t oldest(self) except -1:
        named = self.reader.named
        if named is not None:
            first = named.first_offset
            if first is not None:
                return first
        return self.files[0].first_offset

    @property
    def next_offset(self):
        """The offset that the next message gets."""
        return self.commit.groups.next_offset

    @property
    def durable_offset(self):
        """Readers see everything below it."""
        return self.commit.durable_offset

    def read(self, int64_t offset, Py_ssize_t max_bytes=BLOCK, *, bint at_once=False):
        """A block of whole entries for a reader at `offset`; None at the durable end.

        Its first entry holds `offset` (or is the first one left after retention). It has at least one entry and
        otherwise at most `max_bytes`. What is in memory is returned directly; the rest as an awaitable, which may raise
        CorruptionError or StorageError. `at_once`: what the system has in its cache is returned directly as well, which
        blocks the loop while it is copied and checked.
        """
        cdef int64_t first
        if self.closed:
            raise self.gone()
        first = self.oldest()
        if offset < first:
            offset = first
        if self.gaps.runs:
            offset = self.gaps.skip(offset)
        if <uint64_t>offset >= self.commit.durable_offset:
            return None
        block = self.tail.block_at(offset, max_bytes)
        return self.reader.read(offset, max_bytes, at_once) if block is None else block

    def call_when_durable(self, int64_t offset, call):
        """call() once `offset` may be read, or never will be: the segment is sealed or closed. Once more where it
        fails, for those that wait then; behind that they wait for its close. It never is at once. The result cancels.
        """
        return self.waiters.join(
            offset, call, self.sealed or self.closed or <uint64_t>offset < self.commit.durable_offset
        )

    # What an heir does

    def check_open(self, term):
        """Raise why the segment takes no append of that term, if it does not."""
        raise NotImplementedError

    def gone(self):
        """The error of what comes after it was closed."""
        raise NotImplementedError

    def acknowledge_duplicates(self, waiter, list places):
        """All entries of an append are stored, or on their way."""
        raise NotImplementedError
