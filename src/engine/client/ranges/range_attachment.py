"""`RangeAttachment`: reads a range of a segment from its owner, or from log files or objects that the owner names."""

from __future__ import annotations

from collections.abc import Callable

from engine.client.consume.attachment import AttachmentOwner
from engine.client.consume.file_attachment import FileAttachment
from engine.client.files.local_files import LocalFiles
from engine.errors import EngineError


class RangeAttachment(FileAttachment):
    """Credit is limited to what is missing of the range; `ungranted`: the messages of it that are not granted yet."""

    def __init__(self, owner: AttachmentOwner, segment_id: int, name: str, start: int, stop: int) -> None:
        super().__init__(owner, segment_id, name, start, stop, reads_local=True)
        self.ungranted = 0

    @property
    def local_files(self) -> LocalFiles | None:
        """The files on this machine that it reads now."""
        return self._files if isinstance(self._files, LocalFiles) else None

    def _limited(self, messages: int) -> int:
        """Whole blocks are sent, so the last one may go beyond the range."""
        messages = min(messages, self.ungranted)
        self.ungranted -= messages
        return messages

    def go_on(self, files: LocalFiles, error: Exception | None, more: Callable[[RangeAttachment], None]) -> None:
        """Continue behind what the receiving thread has read, to the end of the files or to `error`. `more` is called
        when there are further files.
        """
        if self._files is not files:
            return
        if error is not None:
            self._leave_files(str(error))
            return
        self.progress.begin(files.offset, files.offset, None)
        self.progress.arrive(files.offset)
        if self.progress.expected < self.stop:
            self.owner.pool.tasks.spawn(self._go_on(files, more), name=f"read {self.name}")

    async def _go_on(self, files: LocalFiles, more: Callable[[RangeAttachment], None]) -> None:
        try:
            if await self._ask_more(files):
                more(self)
        except (OSError, EngineError) as e:
            if self._files is files:
                self._leave_files(str(e))
