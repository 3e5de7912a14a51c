"""`RangeAttachment`: reads a range of a segment from its owner, or from log files or objects that the owner names."""

from __future__ import annotations

import logging
from asyncio import sleep
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.client.consume.attachment import Attachment, AttachmentOwner
from engine.client.net.connection import Connection
from engine.client.net.link import Link
from engine.client.ranges.local_files import LocalFiles
from engine.errors import EngineError
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.commands import OBJECT_READS, SHORT_CIRCUIT_READS

if TYPE_CHECKING:
    from engine.client.ranges.object_files import ObjectFiles
    from engine.storage.objects.ports import ObjectStore

log = logging.getLogger(__name__)


class RangeAttachment(Attachment):
    """Credit is limited to what is missing of the range; `ungranted`: the messages of it that are not granted yet.

    `queued_upto`: see below. `read_by_caller`: the files are read in the receiver's thread, without credit.

    Where the owner says in which files the messages lie, or in which objects, they are read as the credit allows; the
    consumer sees no difference. What those do not have, or cannot be read of them, is asked of the owner.
    """

    def __init__(self, owner: AttachmentOwner, segment_id: int, name: str, start: int, stop: int) -> None:
        super().__init__(owner, segment_id, name, DeliveryMode.READER, start)
        self.stop = stop
        self.ungranted = 0
        self.queued_upto = 0  # what lies below was queued before it was attached, and stays
        self.read_by_caller = False
        self._files: LocalFiles | ObjectFiles | None = None
        self._files_url: str | None = None  # of the owner that named them
        self._asked = False  # the owner was asked for files
        self._reading = False
        self._messages = self._bytes = 0  # credit for what is read from files

    @property
    def local_files(self) -> LocalFiles | None:
        """The files on this machine that it reads now."""
        return self._files if isinstance(self._files, LocalFiles) else None

    @property
    def connected(self) -> bool:
        """Whether it is attached, or reads files."""
        return self._files is not None or super().connected

    async def _attach(self, url: str | None) -> None:
        if self._asked or not await self._find_files(url):
            await super()._attach(url)

    async def _find_files(self, url: str | None) -> bool:
        """Read files if there are any; whether that is so."""
        files = await self._ask(url)
        if files is None:
            return False
        if self.closed:
            files.close()
            return False
        self._files, self._files_url = files, url
        expected = self.progress.expected
        self.progress.begin(expected, expected, None)
        self._owner.attached(self)
        return True

    async def _ask(self, url: str | None) -> LocalFiles | ObjectFiles | None:
        """Files or objects with what is expected next. An error is raised by SUBSCRIBE as well, so not here."""
        pool = self._owner.pool
        connection = await pool.get(url)
        if SHORT_CIRCUIT_READS in connection.features and connection.is_near:
            files = await self._opened(connection, None)
            if files is not None:
                return files
        store = pool.objects.store() if OBJECT_READS in connection.features and not self.closed else None
        return None if store is None else await self._opened(connection, store)

    async def _opened(self, connection: Connection, store: ObjectStore | None) -> LocalFiles | ObjectFiles | None:
        """The files that the owner names or, with a store, the objects there; open."""
        pool, expected = self._owner.pool, self.progress.expected
        wanted = commands.SegmentFiles(topic=self.name, start=expected, stop=self.stop, objects=store is not None)
        try:
            answer = await connection.request(wanted, pool.options.operation_timeout)
            self._asked = True
            files: LocalFiles | ObjectFiles
            if store is None:
                files = LocalFiles(self.segment_id, expected, answer, pool.options.open_file)
            else:
                from engine.client.ranges.object_files import ObjectFiles

                files = ObjectFiles(self.name, self.segment_id, expected, answer, store)
            if files.upto <= expected:
                return None
            await files.open()
        except (OSError, EngineError) as e:
            log.debug("%s is not read from files: %s", self.name, e)
            if store is not None:
                pool.objects.failed(e)
            return None
        return files

    def grant(self, messages: int, size: int) -> None:
        """Whole blocks are sent, so the last one may go beyond the range."""
        messages = min(messages, self.ungranted)
        self.ungranted -= messages
        if self._files is None:
            super().grant(messages, size)
            return
        if self.read_by_caller:
            return
        self._messages += messages
        self._bytes += size
        if not self._reading and self._has_credit:
            self._reading = True
            self._owner.pool.tasks.spawn(self._read(self._files), name=f"read {self.name}")

    @property
    def _has_credit(self) -> bool:
        return self._messages > 0 and self._bytes > 0

    async def _read(self, files: LocalFiles | ObjectFiles) -> None:
        try:
            while self._has_credit and self._files is files:
                if files.offset < files.upto:
                    await self._read_block(files)
                    await sleep(0)  # let other tasks run
                    continue
                if not await self._ask_more(files):
                    return
                files = self._files
        except (OSError, EngineError) as e:
            if self._files is files:
                if files is not self.local_files:
                    self._owner.pool.objects.failed(e)
                self._leave_files(str(e))
        finally:
            self._reading = False

    async def _ask_more(self, files: LocalFiles | ObjectFiles) -> bool:
        """Ask for files behind the end of the present ones; whether there are any."""
        more = await self._ask(self._files_url)
        if self._files is not files:
            return False
        if more is None:
            self._leave_files(f"{files.upto} is reached")
            return False
        self._files = more
        return True

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
            self._owner.pool.tasks.spawn(self._go_on(files, more), name=f"read {self.name}")

    async def _go_on(self, files: LocalFiles, more: Callable[[RangeAttachment], None]) -> None:
        try:
            if await self._ask_more(files):
                more(self)
        except (OSError, EngineError) as e:
            if self._files is files:
                self._leave_files(str(e))

    async def _read_block(self, files: LocalFiles | ObjectFiles) -> None:
        block = await files.next()
        if self._files is files:
            self._messages -= block.messages
            self._bytes -= len(block.data)
            header = commands.Message(
                consumer_id=0,  # no broker sends it
                segment_id=self.segment_id,
                salt=block.salt,
                messages=block.messages,
                skip=block.skip or None,
            )
            self._owner.blocks_came(self, header, block.data)

    def _leave_files(self, why: str) -> None:
        """Attach to the owner for the rest."""
        log.debug("%s is not read from files any more: %s", self.name, why)
        local = self.local_files is not None
        self._forget_files()
        if local:  # which the receiving thread may have read, further than is known here
            self._owner.detached(self)
        else:
            self.queued_upto = self.progress.expected
        self.begin()

    def _forget_files(self) -> None:
        files, self._files = self._files, None
        self._messages = self._bytes = 0
        if files is not None:
            files.close()

    def _end(self) -> Link | None:
        self._forget_files()
        return super()._end()
