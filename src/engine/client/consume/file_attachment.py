"""`FileAttachment`: reads a segment from its owner, or first from log files or objects that the owner names.

Where the owner says in which files the messages lie, or in which objects, they are read as the credit allows; the
consumer sees no difference. What those do not have, or cannot be read of them, is asked of the owner. What was read of
objects stays queued then: the owner sends what lies behind, for the credit that is left.
"""

from __future__ import annotations

import logging
from asyncio import sleep
from typing import TYPE_CHECKING

from engine.client.consume.attachment import Attachment, AttachmentOwner
from engine.client.net.connection import Connection
from engine.client.net.link import Link
from engine.errors import EngineError
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.commands import OBJECT_READS, SHORT_CIRCUIT_READS

if TYPE_CHECKING:
    from engine.client.files.local_files import LocalFiles
    from engine.client.files.object_files import ObjectFiles
    from engine.storage.objects.ports import ObjectStore

log = logging.getLogger(__name__)

NO_END = 2**62  # `stop` of one that reads on for ever


class FileAttachment(Attachment):
    """`stop`: behind the last offset that is wanted. `reads_local`: whether log files on this machine are read.

    `read_by_caller`: files are read in the receiver's thread, without credit. `queued_upto`: what lies below was
    queued before it was attached, and stays.
    """

    def __init__(
        self,
        owner: AttachmentOwner,
        segment_id: int,
        name: str,
        start: int,
        stop: int = NO_END,
        *,
        reads_local: bool = False,
    ) -> None:
        super().__init__(owner, segment_id, name, DeliveryMode.READER, start)
        self.stop = stop
        self.queued_upto = 0
        self.read_by_caller = False
        self._reads_local = reads_local
        self._files: LocalFiles | ObjectFiles | None = None
        self._files_url: str | None = None  # of the owner that named them
        self._asked = False  # the owner was asked for files
        self._reading = False
        self._messages = self._bytes = 0  # credit for what is read from files
        self._used: tuple[int, int] | None = None  # of the window, by what was queued before it was attached

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
        self.owner.attached(self)
        return True

    async def _ask(self, url: str | None) -> LocalFiles | ObjectFiles | None:
        """Files or objects with what is expected next. An error is raised by SUBSCRIBE as well, so not here."""
        pool = self.owner.pool
        if not self._reads_local and pool.objects.store() is None:
            return None
        connection = await pool.get(url)
        if self._reads_local and SHORT_CIRCUIT_READS in connection.features and connection.is_near:
            files = await self._opened(connection, None)
            if files is not None:
                return files
        store = pool.objects.store() if OBJECT_READS in connection.features and not self.closed else None
        return None if store is None else await self._opened(connection, store)

    async def _opened(self, connection: Connection, store: ObjectStore | None) -> LocalFiles | ObjectFiles | None:
        """The files that the owner names or, with a store, the objects there; open."""
        pool, expected = self.owner.pool, self.progress.expected
        wanted = commands.SegmentFiles(topic=self.name, start=expected, stop=self.stop, objects=store is not None)
        try:
            answer = await connection.request(wanted, pool.options.operation_timeout)
            self._asked = True
            files: LocalFiles | ObjectFiles
            if store is None:
                from engine.client.files.local_files import LocalFiles

                files = LocalFiles(self.segment_id, expected, answer, pool.options.open_file)
            else:
                from engine.client.files.object_files import ObjectFiles

                files = ObjectFiles(self.name, self.segment_id, expected, answer, store, pool.objects.ahead)
            if files.upto <= expected:
                return None
            await files.open()
        except (OSError, EngineError) as e:
            log.debug("%s is not read from files: %s", self.name, e)
            if store is not None:
                pool.objects.failed(e)
            return None
        return files

    # -- credit ----------------------------------------------------------------------------------------------------

    def grant(self, messages: int, size: int) -> None:
        """Grant credit for more messages and bytes, of files or to the broker."""
        if self._files is not None:
            self._grant_files(self._limited(messages), size)
        elif self._used is None:
            super().grant(self._limited(messages), size)
        elif self._link is None:  # it was queued before, and is consumed
            self._used = max(0, self._used[0] - messages), max(0, self._used[1] - size)
        else:
            used, self._used = self._used, None
            super().grant(self._limited(max(0, messages - used[0])), max(0, size - used[1]))

    def _limited(self, messages: int) -> int:
        """Of so many messages those for which credit is to be granted."""
        return messages

    def _grant_files(self, messages: int, size: int) -> None:
        if self.read_by_caller:
            return
        self._messages += messages
        self._bytes += size
        if not self._reading and self._has_credit and self._files is not None:
            self._reading = True
            self.owner.pool.tasks.spawn(self._read(self._files), name=f"read {self.name}")

    @property
    def _has_credit(self) -> bool:
        return self._messages > 0 and self._bytes > 0

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _read(self, files: LocalFiles | ObjectFiles) -> None:
        try:
            while self._has_credit and self._files is files and not self.broken:
                if files.offset < files.upto:
                    await self._read_block(files)
                    await sleep(0)  # let other tasks run
                    continue
                if not await self._ask_more(files):
                    return
                files = self._files
        except (OSError, EngineError) as e:
            if self._files is files:
                if not files.by_caller:
                    self.owner.pool.objects.failed(e)
                self._leave_files(str(e))
        finally:
            self._reading = False

    async def _ask_more(self, files: LocalFiles | ObjectFiles) -> bool:
        """Ask for files behind the end of the present ones; whether there are any."""
        more = await self._ask(self._files_url)
        if self._files is not files:
            if more is not None:
                more.close()
            return False
        if more is None:
            self._leave_files(f"{files.upto} is reached")
            return False
        files.close()
        self._files = more
        return True

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
            self.owner.blocks_came(self, header, block.data)

    def _leave_files(self, why: str) -> None:
        """Attach to the owner for the rest."""
        log.debug("%s is not read from files any more: %s", self.name, why)
        left, window = (self._messages, self._bytes), self.window or (0, 0)
        by_caller = self._files is not None and self._files.by_caller
        self._forget_files()
        if by_caller:  # the receiving thread may have read further than is known here
            self.owner.detached(self)
        else:
            self.queued_upto = self.progress.expected
            self._used = max(0, window[0] - left[0]), max(0, window[1] - left[1])
        self.begin()

    def dropped(self) -> None:
        """Nothing of it is queued any more."""
        self.queued_upto, self._used = 0, None

    def _forget_files(self) -> None:
        files, self._files = self._files, None
        self._messages = self._bytes = 0
        if files is not None:
            files.close()

    def _end(self) -> Link | None:
        self._forget_files()
        return super()._end()
