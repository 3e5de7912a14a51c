# cython: language_level=3
"""Group commit of one segment: what repeats with each append and each commit."""
cimport cython
from engine._native.serve.groups cimport Group, GroupQueue
from engine._native.serve.lanes cimport Lanes
from engine._native.serve.meters cimport Marks
from engine._native.serve.tails cimport Pieces, TailCache
from engine._native.serve.waiters cimport Waiters
from libc.stdint cimport int64_t, uint32_t, uint64_t

# The file that is appended to, and how far it is known to be on the medium.
cdef class FileEnd:
    cdef public object file               # None: the next append creates one
    cdef public uint64_t synced_offset
    cdef public uint64_t synced_position
    cdef object handles, post, make_job, zeros_ahead

    cdef int start(self, list groups, bint pads, bint syncs, object done) except -1

# A write that is under way: called with its outcome.
@cython.final
cdef class Write:
    cdef FileEnd end
    cdef object file
    cdef object job
    cdef object done                      # done(its error or None)
    cdef uint64_t stops, zeros            # where its groups end, and how many zeros are to follow

# Counted since the segment was opened.
@cython.final
cdef class Counters:
    cdef public uint64_t commits
    cdef public uint64_t commit_bytes
    cdef public uint64_t syncs
    cdef public uint64_t rolls
    cdef public uint64_t write_failures
    cdef public uint64_t sync_failures

# The primary job that runs.
@cython.final
cdef class Primary:
    cdef readonly list written            # the groups that it writes
    cdef readonly bint syncs
    cdef readonly uint64_t offset         # synced up to here when it succeeds
    cdef readonly uint64_t position
    cdef readonly bint pads
    cdef readonly double begun            # monotonic

cdef class CommitTurns

# What a group's backing calls with the outcome.
@cython.final
cdef class Handed:
    cdef CommitTurns commit
    cdef Group group

cdef enum Step:
    NOTHING                               # there is nothing to do, or the ahead job has to end first
    WRITE                                 # write the next group, and sync it with durability fsync
    SYNC                                  # sync what was written
    ROLL                                  # create the file that the next group goes to

# Which job is next, and what is durable. Its heir rolls files, and handles failures and the end.
cdef class CommitTurns:
    # Fixed after it was made.
    cdef readonly GroupQueue groups
    cdef readonly FileEnd active
    cdef readonly Counters counters
    cdef readonly Marks marks
    cdef readonly object segment
    cdef readonly object metrics
    cdef readonly object lease            # None: no other broker can own the segment
    cdef object monotonic
    cdef bint by_sync, by_interval, backed
    cdef uint64_t commit_bytes_max
    # What runs, and what is wanted.
    cdef public uint64_t durable_offset
    cdef public bint running              # jobs may be started
    cdef public Primary primary           # None: no primary job runs
    cdef public bint small_wanted         # a small group waits no longer for others
    cdef public object failure            # handled once no job runs
    cdef public object stopped_by
    cdef public bint sync_wanted
    cdef public bint witness_sync_wanted
    cdef public list idle                 # futures of what waits until nothing is under way
    cdef bint scheduled

    cdef Group enter(self, object data, list claims, uint32_t term, int64_t time_ms)
    cdef bint is_over(self) except -1
    cdef bint may_begin(self) except -1
    cdef int begin(self) except -1
    cdef Step next_step(self) except *
    cdef bint is_sync_due(self) except -1
    cdef bint may_write_ahead(self) except -1
    cdef bint may_hand_over(self, Group head) except -1
    cdef int hand_over(self, list groups) except -1
    cdef int settle(self) except -1
    cdef int start_primary(self, bint writes) except -1
    cdef int make_durable(self, list groups) except -1
    cdef int go_on(self) except -1

# Counted since the segment was opened. An append counts when it gets its place, durable or not.
@cython.final
cdef class Appends:
    cdef readonly uint64_t messages
    cdef readonly uint64_t entries
    cdef readonly uint64_t size           # bytes
    cdef readonly uint64_t duplicates     # entries

# One segment, as appends and commits see it.
cdef class LogEnd:
    # Its state.
    cdef public bint sealed
    cdef public bint closed
    cdef public int64_t seals             # calls under way: appends are refused
    cdef public object failed
    cdef public uint64_t term
    cdef public object lease              # nothing is written or confirmed once it may be over; None: no other owner
    cdef public int64_t newest_ms         # publish times never fall
    # Its parts.
    cdef readonly Appends appended
    cdef public Lanes dedup
    cdef CommitTurns commit
    cdef TailCache cache
    cdef Pieces tail
    cdef Waiters waiters
    cdef object clock, id_of
    # For readers.
    cdef public object gaps               # see storage/file/continuation.py
    cdef object reader                    # of what is not in memory
    cdef list files                       # oldest first

    cdef list enter(self, object data, list claims, object waiter)
    cdef int64_t oldest(self) except -1
