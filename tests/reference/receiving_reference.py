"""Receiving, as plainly as it can be said: the model of `asked.pyx`, and of the totals of `receiving.pyx`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.model.positions import split_position

Asked = dict[int, dict[int | None, int]]


def by_segment(vector: Mapping[int, int]) -> Asked:
    """A position vector, segment by segment."""
    found: Asked = {}
    for place, position in vector.items():
        segment_id, bucket = split_position(place)
        found.setdefault(segment_id, {})[bucket] = position
    return found


def merged(one: Asked, other: Asked) -> Asked:
    """The larger position of each place."""
    places = {(i, b) for asked in (one, other) for i, found in asked.items() for b in found}
    result: Asked = {i: {} for i in one.keys() | other.keys()}
    for i, b in places:
        result[i][b] = max(asked[i][b] for asked in (one, other) if b in asked.get(i, {}))
    return result


@dataclass
class PlainBlock:
    first: int
    messages: int
    size: int


class PlainInbox:
    """Blocks of one entry each, of one segment, received message by message.

    What was popped is credited once it is a quarter of a window: messages one by one, bytes by whole entries.
    """

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        self.windows = window_messages, window_bytes
        self.waiting: list[tuple[int, int]] = []  # (offset, bytes that are freed with it)
        self.credited: list[tuple[int, int]] = []
        self.held = 0
        self.due_messages = self.due_bytes = 0

    def came(self, block: PlainBlock) -> None:
        last = block.first + block.messages - 1
        self.waiting += [(o, block.size if o == last else 0) for o in range(block.first, last + 1)]
        self.held += block.size
        self._credit()

    def pop(self) -> int | None:
        if not self.waiting:
            return None
        offset, freed = self.waiting.pop(0)
        self.due_messages += 1
        self.due_bytes += freed
        self._credit()
        return offset

    def _credit(self) -> None:
        if 4 * self.due_messages >= self.windows[0] > 0 or 4 * self.due_bytes >= self.windows[1]:
            self.credited.append((self.due_messages, self.due_bytes))
            self.held -= self.due_bytes
            self.due_messages = self.due_bytes = 0
