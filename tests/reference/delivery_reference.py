"""What a consumer that reads a segment alone is sent, as plainly as it can be said: the model of `LoneOutlet`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PlainLone:
    """`blocks`: those that are durable, [first, stop) and bytes. `acked`: offsets that are acknowledged."""

    next_offset: int = 0
    messages: int = 0
    size: int = 0
    writable: bool = True
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    sent: list[tuple[int, int, list[list[int]]]] = field(default_factory=list)

    def pump(self) -> None:
        """Send while there is credit, room and something durable; the window is as wide as any entry."""
        while self.messages > 0 and self.size > 0 and self.writable:
            while self.next_offset in self.acked:
                self.next_offset += 1
            found = next((block for block in self.blocks if block[0] <= self.next_offset < block[1]), None)
            if found is None:
                return
            first, stop, size = found
            skip = _runs([offset for offset in range(first, stop) if offset in self.acked])
            self.sent.append((first, stop, skip))
            self.messages -= stop - first - sum(b + 1 - a for a, b in skip)
            self.size -= size
            self.next_offset = stop


def _runs(offsets: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] + 1 == offset:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found
