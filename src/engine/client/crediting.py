"""How a consumer of one topic counts what it was sent, and grants its brokers as much again as was received."""

from __future__ import annotations

from abc import abstractmethod

from engine._native.entry_queue import EntryQueue
from engine.client.attachment import Attachment
from engine.client.receiving import Receiving
from engine.client.windows import Budget


class Crediting(Receiving):
    """Loop thread only, but for _must_look()."""

    _queue: EntryQueue

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.attachments: dict[int, Attachment] = {}
        # What arrived and what was credited again, in total; what is between the two is queued or due.
        self._pushed_messages = self._pushed_bytes = 0
        self._credited_messages = self._credited_bytes = 0
        self._budget = budget
        self._counted = self._held = 0  # attachments, and bytes, in the budget
        # The smallest window that was granted; a quarter of it is worth a FLOW.
        self._window_messages, self._window_bytes = budget.whole
        self._fitted_to = (0, 0)  # of the budget, when windows were made
        self._returning = False

    @abstractmethod
    def _new_queue(self) -> EntryQueue:
        """An empty one."""

    def _recount(self) -> None:
        self._held = self._budget.hold(self._held, self._pushed_bytes - self._credited_bytes)
        self._counted = self._budget.recount(self._counted, len(self.attachments))

    def _fit_windows(self) -> None:
        self._recount()
        self._fitted_to = self._budget.state
        self._window_messages, self._window_bytes = self._budget.widen(self.attachments.values())

    def _drop(self, segment_id: int) -> int:
        """Forget what is queued of one segment; it needs no credit. Returns how many messages."""
        self._return_credit()
        size = self._queue.bytes
        dropped = self._queue.drop(segment_id)
        self._credited_messages += dropped
        self._credited_bytes += size - self._queue.bytes
        return dropped

    def _restart_queue(self) -> None:
        """Begin with an empty queue, all credit accounted for."""
        self._queue = self._new_queue()
        self._credited_messages, self._credited_bytes = self._pushed_messages, self._pushed_bytes

    def _popped(self) -> None:
        """After every pop, on the loop."""
        if self._must_look():
            self._return_credit()

    def _must_look(self) -> bool:
        """Whether enough was consumed to tell the brokers."""
        messages = self._pushed_messages - self._queue.messages - self._credited_messages
        size = self._pushed_bytes - self._queue.bytes - self._credited_bytes
        return 4 * messages >= self._window_messages or 4 * size >= self._window_bytes

    def _return_credit(self) -> None:
        self._returning = False
        self._grant(self._queue.take_credit())

    def _grant(self, due: dict[int, tuple[int, int]]) -> None:
        for segment_id, (messages, size) in due.items():
            self._credited_messages += messages
            self._credited_bytes += size
            attachment = self.attachments.get(segment_id)
            if attachment is not None and not attachment.broken:
                self._budget.regrant(attachment, messages, size)
        self._recount()
        if self._budget.state != self._fitted_to:
            self._fit_windows()
