# cython: language_level=3
"""Readers of open segments: what repeats with each block that is in memory, and with each wait for the next one."""
from engine._native.serve.blocks cimport Block
from libc.stdint cimport int64_t


cdef class ReadTurns:
    """Loop thread only."""

    def __init__(self, queue not None, busy not None):
        """`queue`: of readers that wait for their turn. `busy`: whether messages wait to become durable."""
        self.queue = queue
        self.busy = busy

    @property
    def crowded(self):
        """Whether readers wait for their turn."""
        return len(self.queue) > 0

    @property
    def at_once(self):
        """Whether a block in the page cache may be read on the loop. (Their number in one turn is limited as for
        blocks from memory.)
        """
        return self.reads_at_once()

    cdef bint reads_at_once(self) except -1:
        return not len(self.queue) and not self.busy()


cdef class BlockReader:
    """Loop thread only. `step`, `owner_close`: see its heir, `broker/segment/reader.py`."""

    def __init__(self, hosted, step, owner_close):
        self.hosted = hosted
        self.step = step
        self.owner_close = owner_close

    @property
    def busy(self):
        """Whether a read or a wait is under way; `step` follows."""
        return self.pending is not None

    @property
    def at_once(self):
        """Whether what is in the page cache is read on the loop."""
        return self.cold == 0 and (<ReadTurns?>self.hosted.environment.reads).reads_at_once()

    def read(self, int64_t offset, int64_t bytes_max):
        """The block at `offset`. None: there is none below the last stable offset, or `step` is called with it later.

        Raises what the segment raises.
        """
        return self.next_block(offset, bytes_max)

    cdef object next_block(self, int64_t offset, int64_t bytes_max):
        cdef Block block
        gate = self.hosted.transactions
        if gate is not None:
            limit = gate.limit
            if limit is not None and offset >= <int64_t>limit:
                return None
        at_once = self.at_once
        found = self.hosted.segment.read(offset, bytes_max, at_once=at_once)
        if type(found) is not Block:
            if found is not None:
                self.began(found, offset, bytes_max, at_once)
            return None
        block = found
        if not <int64_t>block.first_offset <= offset < <int64_t>block.next_offset:
            error = self.misplaced(block, offset)
            if error is not None:
                raise error
        return block if gate is None else gate.cut(block)

    def wait(self, int64_t offset):
        """Call step(None) when messages at `offset` are durable, or the segment has ended."""
        self.wait_at(offset)

    cdef int wait_at(self, int64_t offset) except -1:
        if self.pending is not None:
            self.check_idle()
        self.pending = self.hosted.segment.call_when_durable(offset, self._woken)
        self.waiting = True
        return 0

    def _woken(self):
        self.pending = None
        self.waiting = False
        self.step(None)

    # What an heir does

    def began(self, found, offset, bytes_max, at_once):
        """The block is not in memory: `found` is awaited."""
        raise NotImplementedError

    def misplaced(self, block, offset):
        """The error of a block that does not hold the offset it was read at, if it is one."""
        raise NotImplementedError

    def check_idle(self):
        """At most one read or one wait is under way."""
        raise NotImplementedError
