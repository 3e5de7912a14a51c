"""A producer's lanes through every layout: which take messages, and who comes after a segment that was sealed.

When a layout seals a segment, its lane retires and lanes of the segments that now own its hashes are held. Entries in
flight are waited for: receipts of those that got in before the seal still come. What is left is split by message into
the successors, ahead of everything newer, and then these are let go (semantics 23). Entries whose fate was lost with a
connection go there as well: the successors' owners know them by producer and sequence (semantics 24).

Order is kept over several generations at once: a successor that is sealed before it was let go hands on what it has
only after its own predecessors have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine._native.produce.batcher import Batcher, SealedEntry
from engine._native.produce.sealed import expand
from engine.client.base.compression import decompressor
from engine.client.produce.in_flight import Ledger
from engine.client.produce.sender import Lane
from engine.client.produce.sender_attachment import LaneOwner
from engine.client.topic.session import SegmentView, TopicLayout


class Succession:
    """Loop thread only. `batcher` and `ledger` are those of the producer; nothing is sent before they are there."""

    def __init__(self, owner: LaneOwner, compress: Callable[[Sequence[SealedEntry]], None]) -> None:
        self.lanes: dict[int, Lane] = {}  # by segment, also those that are retired and have not handed on
        self._retired: dict[Lane, None] = {}  # the oldest generation first
        self._owner = owner
        self._compress = compress
        self._decompress = decompressor()

    def adopt(self, layout: TopicLayout) -> None:
        """A lane for every segment that takes messages; the others retire. settle() has to follow."""
        active = {segment.segment_id for segment in layout.active}
        for lane in self.lanes.values():
            if lane.segment.segment_id not in active and not lane.retired:
                lane.retire()
                self._retired[lane] = None
        for segment in layout.active:
            known = self.lanes.get(segment.segment_id)
            if known is None:
                self.lanes[segment.segment_id] = self._make(segment)
            else:
                known.readdress(segment)

    def _make(self, segment: SegmentView) -> Lane:
        lane = Lane(self._owner, segment)
        inside = segment.hash_range
        predecessors = [
            old
            for old in self._retired
            if old.segment.hash_range.start <= inside.end and inside.start <= old.segment.hash_range.end
        ]
        if predecessors:
            lane.succeed(predecessors)
        return lane

    def drop_sealed(self, layout: TopicLayout) -> bool:
        """Before anything is sent: forget lanes of segments that are not active any more; whether there were some."""
        active = {segment.segment_id for segment in layout.active}
        sealed = [ident for ident in self.lanes if ident not in active]
        for ident in sealed:
            self.lanes.pop(ident).surrender()
        return bool(sealed)

    def move_retired(self, layout: TopicLayout) -> None:
        """Who owned a sealed segment before answers no more. To follow on adopt(), when messages are routed by it."""
        for lane in list(self._retired):
            segment = layout.segments.get(lane.segment.segment_id)
            if segment is not None:
                lane.readdress(segment)

    def attach_eager(self) -> None:
        """Attach the lanes that will be wanted, or that have to be claimed."""
        for lane in self.lanes.values():
            if not lane.attached and not lane.retired:
                lane.transmit()

    def settle(self, batcher: Batcher, ledger: Ledger) -> None:
        """Let retired lanes that have heard all they will hear hand on what is left, predecessors first."""
        for lane in list(self._retired):
            if lane in self._retired and lane.has_heard_all:
                self._hand_on(lane, batcher, ledger)

    def expanded(self, entry: SealedEntry) -> bytes:
        """Its image as it was before compression."""
        return expand(entry.data, self._decompress)

    def _hand_on(self, lane: Lane, batcher: Batcher, ledger: Ledger) -> None:
        del self._retired[lane], self.lanes[lane.segment.segment_id]
        for entry in lane.surrender():
            if entry in ledger:
                entry.data = self.expanded(entry)
                pieces = batcher.resplit(entry)
                self._compress(pieces)
                ledger.replace(entry, pieces)
                for piece in pieces:
                    self.lanes[piece.segment_id].backlog.ahead.append(piece)
        for other in [*self.lanes.values()]:
            if lane in other.waits_for:
                other.let_go(lane)
