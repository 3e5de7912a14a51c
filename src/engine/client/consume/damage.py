"""Bad entries of a consumer of one topic: reported with their place, or skipped.

A bad entry is queued in its place, like a good one, so that everything good before it is received first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from engine._native.consume.opening import damaged_entry
from engine._native.format.entry import Entry
from engine.errors import CorruptionError, DecryptionError

if TYPE_CHECKING:
    from engine.client.consume.attachment import Attachment
    from engine.client.consume.receiver import Receiver

T = TypeVar("T")

log = logging.getLogger("engine.client")


class Damage:
    """Handles the bad entries of one consumer. Loop thread only.

    `entries`, `messages`: those that were skipped. `stopped`: by segment, the error at which delivery stopped.
    """

    def __init__(self, receiver: Receiver[Any]) -> None:
        self.entries = self.messages = 0
        self.stopped: dict[int, CorruptionError] = {}
        self._receiver = receiver
        self._skips = receiver.options.on_corrupt == "skip"
        self._counted: Entry | None = None

    def meet(self) -> CorruptionError | None:
        """A bad entry is next: skip it, or return the error that one receive raises."""
        receiver = self._receiver
        found = receiver.damaged()
        if found is None:
            return None
        entry, first, last = found
        if self._skips and entry.size:
            self._skip(entry, first, last)
            return None
        error = self._error(entry, first, last)
        receiver.stop_at(entry, error)
        return error

    def past(self, error: CorruptionError | DecryptionError, pop: Callable[[], T | None]) -> T | None:
        """Pop what is behind skipped entries, once `pop` has raised `error`. Raises CorruptionError for a bad entry
        that is not skipped; DecryptionError for one that cannot be opened: that is none.
        """
        while isinstance(error, CorruptionError):
            if (bad := self.meet()) is not None:
                raise bad from None
            try:
                return pop()
            except (CorruptionError, DecryptionError) as e:
                error = e
        raise self.placed(error)

    def _skip(self, entry: Entry, first: int, last: int) -> None:
        receiver = self._receiver
        log.warning("%s", f"skipped: {self._error(entry, first, last)}")
        if entry is not self._counted:
            self._counted = entry
            self.entries += 1
        self.messages += last + 1 - first
        attachment = receiver.attachments.get(entry.segment_id)
        receiver.pass_by(attachment, entry, first, last)

    def _error(self, entry: Entry, first: int, last: int) -> CorruptionError:
        receiver = self._receiver
        where = f"{first}..{last}" if entry.size else f"{first} and on"
        error = CorruptionError(f"{receiver.topic}, segment {entry.segment_id}, offsets {where}: {entry.failure}")
        error.topic, error.segment_id = receiver.topic, entry.segment_id
        error.offsets = (first, last if entry.size else None)
        return error

    def placed(self, error: DecryptionError) -> DecryptionError:
        """The error, with the topic where it has a place already."""
        if error.offsets is not None and error.topic is None:
            error.topic = str(self._receiver.topic)
            error.args = (f"{error.topic}, {error}",)
        return error

    def check(self) -> None:
        """Raise where every segment has stopped at a bad entry: nothing more would arrive."""
        attachments = self._receiver.attachments.values()
        if self.stopped and attachments and all(attachment.broken for attachment in attachments):
            error = next(iter(self.stopped.values()))
            raise error.with_traceback(None)


def end_of(attachment: Attachment, error: CorruptionError) -> Entry:
    """The queue entry for everything that the broker cannot read."""
    return damaged_entry(attachment.segment_id, attachment.progress.expected, str(error))
