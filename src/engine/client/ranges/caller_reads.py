"""`CallerReads`: local files that are read in the thread that receives, to their end.

A blocking client's event loop runs in another thread. Reading files there would wake two threads for each batch, and
move the data between processor caches; and reading files needs no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.consume.batch import MessageBatch
from engine._native.consume.opening import take_block
from engine.aio.locks import Lock
from engine.errors import CorruptionError, EngineError

if TYPE_CHECKING:
    from engine.client.files.local_files import LocalFiles
    from engine.client.ranges.range_attachment import RangeAttachment
    from engine.client.ranges.range_reader import AsyncRangeReader


class CallerReads:
    """From any thread. While there is one, the reader's loop reads nothing; at its end, call `reader.given_back()`.

    `error`: why it ended before the files did. `files`: positioned behind what is queued. It ends at a bad entry, which
    is handled on the loop.
    """

    def __init__(self, reader: AsyncRangeReader, attachment: RangeAttachment, files: LocalFiles) -> None:
        self.attachment = attachment
        self.files = files
        self.error: OSError | EngineError | None = None
        self._reader = reader
        self._upto = min(files.upto, attachment.stop)
        self._over = False
        self._lock = Lock()

    def next_batch(self, max_messages: int) -> MessageBatch | None:
        """The next messages, at most `max_messages`; None at the end."""
        with self._lock:
            try:
                while not self._over:
                    batch = self._reader.take_queued(max_messages)
                    if batch is not None:
                        return batch
                    self._over = self._reader.failure is not None or not self._read()
            except CorruptionError:
                self._over = True
            except BaseException as e:  # what was read may not be queued: the owner is asked for it
                self._over, self.error = True, EngineError(f"interrupted by {e!r}")
                raise
        return None

    def _read(self) -> bool:
        """Queue a block. False at the end."""
        files, begin = self.files, self.files.offset
        if begin >= self._upto or self.attachment.broken:
            return False
        try:
            block = files.next_now()
        except (OSError, EngineError) as e:
            self.error = e
            return False
        entries, lost = take_block(block.data, block.salt, self.attachment.segment_id, begin)
        self._reader.queue_local(self.attachment, block, entries, begin, lost)
        return True
