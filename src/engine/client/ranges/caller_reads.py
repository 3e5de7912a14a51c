"""`Handover`: files that whoever receives reads in its own thread, as far as they go.

A blocking client's loop is in another thread. What that reads from files wakes two threads, and goes from one
processor's cache to another's; and for files nobody needs a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.consume.batch import MessageBatch
from engine._native.consume.opening import take_block
from engine.aio.locks import Lock
from engine.errors import CorruptionError, EngineError

if TYPE_CHECKING:
    from engine.client.ranges.local_files import NearFiles
    from engine.client.ranges.range_attachment import RangeAttachment
    from engine.client.ranges.range_reader import AsyncRangeReader


class Handover:
    """From any thread. While there is one, the reader's loop reads nothing; when it is over, that has to be told.

    `error`: why it was over before the files were. `near`: it stands behind what is queued. At a bad entry it is over:
    that is met on the loop.
    """

    def __init__(self, reader: AsyncRangeReader, attachment: RangeAttachment, near: NearFiles) -> None:
        self.attachment = attachment
        self.near = near
        self.error: OSError | EngineError | None = None
        self._reader = reader
        self._upto = min(near.upto, attachment.stop)
        self._over = False
        self._lock = Lock()

    def next_batch(self, max_messages: int) -> MessageBatch | None:
        """The next messages, at most so many; None when it is over."""
        with self._lock:
            try:
                while not self._over:
                    batch = self._reader.take_queued(max_messages)
                    if batch is not None:
                        return batch
                    self._over = self._reader.failure is not None or not self._read()
            except CorruptionError:
                self._over = True
            except BaseException as e:  # what was read may not be queued: it is asked for
                self._over, self.error = True, EngineError(f"interrupted by {e!r}")
                raise
        return None

    def _read(self) -> bool:
        """Queue a block. False when there is none."""
        near, begin = self.near, self.near.offset
        if begin >= self._upto or self.attachment.broken:
            return False
        try:
            block = near.next_now()
        except (OSError, EngineError) as e:
            self.error = e
            return False
        entries, lost = take_block(block.data, block.salt, self.attachment.segment_id, begin)
        self._reader.queue_near(self.attachment, block, entries, begin, lost)
        return True
