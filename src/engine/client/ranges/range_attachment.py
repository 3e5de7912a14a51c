"""`RangeAttachment`: a segment's range from its owner, or, on the owner's machine, from the log files themselves."""

from __future__ import annotations

import logging
from asyncio import sleep
from collections.abc import Callable

from engine.client.consume.attachment import READER, Attachment, AttachmentOwner
from engine.client.net.connection import Connection
from engine.client.ranges.local_files import NearFiles
from engine.errors import EngineError
from engine.wire import commands
from engine.wire.commands import SHORT_CIRCUIT_READS

log = logging.getLogger(__name__)


class RangeAttachment(Attachment):
    """It is granted no more than what is missing. `ungranted`: so many messages of that. `handed_over`: files are read
    by who receives, who needs no credit.

    Where the owner says in which files the messages lie, they are read as the credit allows; the consumer sees no
    difference. Whatever those do not have, or refuse, the owner is asked for after all.
    """

    def __init__(self, owner: AttachmentOwner, segment_id: int, name: str, start: int, stop: int) -> None:
        super().__init__(owner, segment_id, name, READER, start)
        self.stop = stop
        self.ungranted = 0
        self.handed_over = False
        self._near: NearFiles | None = None
        self._near_url: str | None = None  # whom it asked for them
        self._asked = False  # whether there are files
        self._reading = False
        self._messages = self._bytes = 0  # credit for what is read from files

    @property
    def near(self) -> NearFiles | None:
        """What it is served from now, if from files."""
        return self._near

    @property
    def connected(self) -> bool:
        """Whether it is served now."""
        return self._near is not None or super().connected

    async def _attach(self, url: str | None) -> None:
        if self._asked or not await self._find_files(url):
            await super()._attach(url)

    async def _find_files(self, url: str | None) -> bool:
        """Whether it is served from files now."""
        near = await self._ask(url)
        if near is None or self.closed:
            return False
        self._near, self._near_url = near, url
        self.position = self.confirmed = self.expected
        self._owner.attached(self)
        return True

    async def _ask(self, url: str | None) -> NearFiles | None:
        """Files that have what is expected next. What the owner says instead, SUBSCRIBE will hear as well."""
        pool = self._owner.pool
        connection = await pool.get(url)
        if SHORT_CIRCUIT_READS not in connection.features or not connection.is_near:
            return None
        wanted = commands.SegmentFiles(topic=self.name, start=self.expected, stop=self.stop)
        try:
            answer = await connection.request(wanted, pool.options.operation_timeout)
            self._asked = True
            near = NearFiles(self.segment_id, self.expected, answer, pool.options.open_file)
            if near.upto <= self.expected:
                return None
            await near.open()
        except (OSError, EngineError) as e:
            log.debug("%s is not read from files: %s", self.name, e)
            return None
        return near

    def grant(self, messages: int, size: int) -> None:
        """Whole blocks come, so the last one may go beyond."""
        messages = min(messages, self.ungranted)
        self.ungranted -= messages
        if self._near is None:
            super().grant(messages, size)
            return
        if self.handed_over:
            return
        self._messages += messages
        self._bytes += size
        if not self._reading and self._has_credit:
            self._reading = True
            self._owner.pool.tasks.spawn(self._read(self._near), name=f"read {self.name}")

    @property
    def _has_credit(self) -> bool:
        return self._messages > 0 and self._bytes > 0

    async def _read(self, near: NearFiles) -> None:
        try:
            while self._has_credit and self._near is near:
                if near.offset < near.upto:
                    await self._read_block(near)
                    await sleep(0)  # others' turn
                    continue
                if not await self._ask_more(near):
                    return
                near = self._near
        except (OSError, EngineError) as e:
            if self._near is near:
                self._leave_files(str(e))
        finally:
            self._reading = False

    async def _ask_more(self, near: NearFiles) -> bool:
        """Behind the end of what the owner has told. Whether there is more."""
        more = await self._ask(self._near_url)
        if self._near is not near:
            return False
        if more is None:
            self._leave_files(f"{near.upto} is reached")
            return False
        self._near = more
        return True

    def go_on(self, near: NearFiles, error: Exception | None, more: Callable[[RangeAttachment], None]) -> None:
        """Behind what somebody else has read of them, as far as they go, or until there was an error. `more`: is told
        when there are others.
        """
        if self._near is not near:
            return
        if error is not None:
            self._leave_files(str(error))
            return
        self.position = self.confirmed = self.expected = near.offset
        self.arrived = max(self.arrived, self.expected)
        if self.expected < self.stop:
            self._owner.pool.tasks.spawn(self._go_on(near, more), name=f"read {self.name}")

    async def _go_on(self, near: NearFiles, more: Callable[[RangeAttachment], None]) -> None:
        try:
            if await self._ask_more(near):
                more(self)
        except (OSError, EngineError) as e:
            if self._near is near:
                self._leave_files(str(e))

    async def _read_block(self, near: NearFiles) -> None:
        block = await near.next()
        if self._near is near:
            self._messages -= block.messages
            self._bytes -= len(block.data)
            header = commands.Message(
                consumer_id=self._consumer_id,  # of nobody
                segment_id=self.segment_id,
                salt=block.salt,
                messages=block.messages,
                skip=block.skip or None,
            )
            self._owner.blocks_came(self, header, block.data)

    def _leave_files(self, why: str) -> None:
        """The owner sends the rest."""
        log.debug("%s is not read from files any more: %s", self.name, why)
        self._forget_files()
        self._owner.detached(self)
        self.begin()

    def _forget_files(self) -> None:
        near, self._near = self._near, None
        self._messages = self._bytes = 0
        if near is not None:
            near.close()

    def _end(self) -> Connection | None:
        self._forget_files()
        return super()._end()
