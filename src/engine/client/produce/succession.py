"""A producer's senders through every layout: which take messages, and which follow one whose segment was sealed.

When a layout seals a segment, its sender retires, and senders of the segments that now own its hashes are held.
Entries in flight are waited for: receipts of those that were stored before the seal still come. What is left is split
by message into the successors, ahead of everything newer; then the successors are released (semantics 23). Entries
whose outcome was lost with a connection go the same way: the successors' owners recognise them by producer and
sequence (semantics 24).

Order is kept over several generations at once: a successor that is sealed before it was released hands on what it has
only after its own predecessors have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry, expand
from engine.client.produce.in_flight import InFlight
from engine.client.produce.sender import Sender, SenderOwner
from engine.client.topic.layout import SegmentView, TopicLayout


class Succession:
    """Loop thread only."""

    def __init__(
        self,
        owner: SenderOwner,
        pack: Callable[[Sequence[SealedEntry]], None],
        opened: Callable[[int, Any, int], bytes],
    ) -> None:
        """`pack`: compresses and encrypts entries. `opened`: undoes that for one body, see Entry.messages()."""
        self.senders: dict[int, Sender] = {}  # by segment, also those that are retired and have not handed on
        self._retired: dict[Sender, None] = {}  # the oldest generation first
        self._owner = owner
        self._pack = pack
        self._open = opened

    def adopt(self, layout: TopicLayout) -> None:
        """Have a sender for every active segment, and retire the others. settle() has to follow."""
        active = {segment.segment_id for segment in layout.active}
        for sender in self.senders.values():
            if sender.segment.segment_id not in active and not sender.retired:
                sender.retire()
                self._retired[sender] = None
        for segment in layout.active:
            known = self.senders.get(segment.segment_id)
            if known is None:
                self.senders[segment.segment_id] = self._make(segment)
            else:
                known.readdress(segment)

    def _make(self, segment: SegmentView) -> Sender:
        sender = Sender(self._owner, segment)
        inside = segment.hash_range
        predecessors = [
            old
            for old in self._retired
            if old.segment.hash_range.start <= inside.end and inside.start <= old.segment.hash_range.end
        ]
        if predecessors:
            sender.succeed(predecessors)
        return sender

    def drop_sealed(self, layout: TopicLayout) -> bool:
        """Before anything is sent: drop senders of segments that are not active any more; whether there were some."""
        active = {segment.segment_id for segment in layout.active}
        sealed = [ident for ident in self.senders if ident not in active]
        for ident in sealed:
            self.senders.pop(ident).surrender()
        return bool(sealed)

    def move_retired(self, layout: TopicLayout) -> None:
        """Ask the new owner of a sealed segment for the answers. Call it once messages are routed by this layout."""
        for sender in list(self._retired):
            segment = layout.segments.get(sender.segment.segment_id)
            if segment is not None:
                sender.readdress(segment)

    def attach_eager(self) -> None:
        """Attach the senders that will be needed, or whose segment has to be claimed."""
        for sender in self.senders.values():
            if not sender.attached and not sender.retired:
                sender.transmit()

    def settle(self, batcher: Batcher, in_flight: InFlight) -> None:
        """Let settled senders hand on what is left, predecessors first."""
        for sender in list(self._retired):
            if sender in self._retired and sender.is_settled:
                self._hand_on(sender, batcher, in_flight)

    def expanded(self, entry: SealedEntry) -> bytes:
        """Its image as it was before compression and encryption."""
        return expand(entry.data, self._open)

    def _hand_on(self, sender: Sender, batcher: Batcher, in_flight: InFlight) -> None:
        del self._retired[sender], self.senders[sender.segment.segment_id]
        for entry in sender.surrender():
            if entry in in_flight:
                entry.data = self.expanded(entry)
                pieces = batcher.resplit(entry)
                self._pack(pieces)
                in_flight.replace(entry, pieces)
                for piece in pieces:
                    self.senders[piece.segment_id].backlog.ahead.append(piece)
        for other in [*self.senders.values()]:
            if sender in other.waits_for:
                other.release(sender)
