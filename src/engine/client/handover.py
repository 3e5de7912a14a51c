"""`Handover`: files that whoever receives reads in its own thread, as far as they go.

A blocking client's loop is in another thread. What that reads from files wakes two threads, and goes from one
processor's cache to another's; and for files nobody needs a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.batch import MessageBatch, decode_block
from engine.aio.locks import Lock
from engine.client.compression import decompressor
from engine.errors import CorruptionError, EngineError

if TYPE_CHECKING:
    from engine.client.near_files import NearFiles
    from engine.client.range_attachment import RangeAttachment
    from engine.client.range_reader import AsyncRangeReader


class Handover:
    """From any thread. While there is one, the reader's loop reads nothing; when it is over, that has to be told.

    `error`: why it was over before the files were; `damage`: what they hold is bad. `near`: it stands behind what is
    queued.
    """

    def __init__(self, reader: AsyncRangeReader, attachment: RangeAttachment, near: NearFiles) -> None:
        self.attachment = attachment
        self.near = near
        self.error: OSError | EngineError | None = None
        self.damage: CorruptionError | None = None
        self._reader = reader
        self._upto = min(near.upto, attachment.stop)
        self._over = False
        self._lock = Lock()
        self._decompress = decompressor()

    def next_batch(self, max_messages: int) -> MessageBatch | None:
        """The next messages, at most so many; None when it is over."""
        with self._lock:
            try:
                while not self._over:
                    batch = self._reader.take_queued(max_messages)
                    if batch is not None:
                        return batch
                    self._over = self._reader.failure is not None or not self._read()
            except BaseException as e:  # what was read may not be queued: it is asked for
                self._over, self.error = True, EngineError(f"interrupted by {e!r}")
                raise
        return None

    def _read(self) -> bool:
        """Queue a block. False when there is none."""
        near, begin = self.near, self.near.offset
        if begin >= self._upto:
            return False
        try:
            block = near.next_now()
        except (OSError, EngineError) as e:
            self.error = e
            return False
        try:
            entries = decode_block(block.data, block.salt, self.attachment.segment_id, begin, self._decompress)
        except CorruptionError as e:
            self.damage = e
            return False
        self._reader.queue_near(self.attachment, block, entries, begin)
        return True
