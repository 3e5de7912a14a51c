"""`Acknowledging`: one ACK under way, ended by the broker's answer itself: no task waits for it, and it has no timer.

It stands in the connection's table of requests in place of a future:

    answered    what is acknowledged is noted, and the caller's future ends, in the step that receives the answer
    refused     the caller's future raises the broker's error
    lost        with the connection or the attachment: a task sends it again over the next attachment
    late        the attachment's timer for all of them ends it with TimeoutError

The caller may cancel its future, or drop it: the ACK was sent, and its answer is noted all the same.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from engine.client.base.starting import Starting
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.client.consume.attachment import Attachment
    from engine.client.net.link import Link

# Called once, with whether it is durable (False without an error: the attachment was given up first), and the error.
# What it raises, the caller's future raises; what it returns is done before that ends, and may raise as well.
Finish = Callable[[bool, Exception | None], Coroutine[Any, Any, None] | None]


class Acknowledging:
    """Loop thread only. `fields`: of start_ack(); `until`: by the loop's clock."""

    __slots__ = ("_attachment", "_fields", "_finish", "_link", "_over", "_starting", "_until", "future")

    def __init__(
        self,
        attachment: Attachment,
        link: Link,
        fields: dict[str, Any],
        starting: Starting,
        finish: Finish,
        until: float,
    ) -> None:
        self.future: asyncio.Future[None] = starting.future()
        self._attachment = attachment
        self._link = link
        self._fields = fields
        self._starting = starting
        self._finish = finish
        self._until = until
        self._over = False

    # -- in place of a future, for the connection ------------------------------------------------------------------

    def done(self) -> bool:
        """Whether an answer is of no use any more."""
        return self._over

    def set_result(self, answer: Any, /) -> None:
        """The broker has confirmed it."""
        self._end(True, None)

    def set_exception(self, error: Any, /) -> None:
        """The broker has refused it, or the connection is lost."""
        if self._attachment.lost_with(self._link, error):
            self._attachment.deadlines.discard(self)
            self._starting.keep(self._send_again())  # the sessions of the connection are told of its loss first
        else:
            self._end(False, error)

    def exception(self) -> None:
        """Nothing is to be retrieved here."""

    # ---------------------------------------------------------------------------------------------------------------

    def missed(self) -> None:
        """Nothing has ended it in time."""
        self._end(False, self._attachment.not_confirmed())

    async def _send_again(self) -> None:
        attachment = self._attachment
        durable, error = False, None
        try:
            async with asyncio.timeout_at(self._until):
                durable = await attachment.send_again(self._fields)
        except EngineError as e:
            error = e
        except builtins.TimeoutError:
            error = attachment.not_confirmed()
        except BaseException:
            self.future.cancel()
            raise
        self._end(durable, error)

    def _end(self, durable: bool, error: Exception | None) -> None:
        self._over = True
        self._attachment.deadlines.discard(self)
        if durable:
            self._attachment.note_fields(self._fields)
        try:
            rest = self._finish(durable, error)
        except Exception as e:
            if not self.future.done():
                self.future.set_exception(e)
        else:
            if rest is not None:
                self._starting.keep(self._end_behind(rest))
            elif not self.future.done():
                self.future.set_result(None)

    async def _end_behind(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception as e:
            if not self.future.done():
                self.future.set_exception(e)
        else:
            if not self.future.done():
                self.future.set_result(None)
        finally:
            self.future.cancel()  # the task was; no effect behind an end
