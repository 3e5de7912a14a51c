"""Splitting, merging and rebucketing segments of a live topic, step by step as PIP-468 orders them (semantics 42).

    begin       the intent is recorded: which segments are replaced, and by which, under ids that are never used again
    CHILDREN    subscriptions are discovered, the children created with a cursor at the earliest of each
    TERMINATE   POINT OF NO RETURN, recorded; the parents are sealed durably, the children inherit their producers
    commit      one compare-and-set: parents sealed, children active, the epoch one higher, nothing pending

                        +--> TERMINATE --> commit
    begin --> CHILDREN -+
                        +--> UNDO ------> nothing pending, the epoch as before

The order follows from what a crash may leave behind. The intent comes first, so that the next leader knows which
children to delete. The children exist before the parents are sealed, so that there is always a segment to write to
soon. TERMINATE is recorded before the first parent is sealed, since a sealed segment is never opened again: from there
the change can only be finished. A change that did not reach it is undone: the children are deleted, then the intent.
Readers see the old layout until the commit, so the topic serves all the while.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from engine.clock import Clock
from engine.control.base.ports import SegmentHost
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.changes import ChangePhase, TopicChange, run_phases, together
from engine.errors import UnsupportedError
from engine.model.layout import PendingChange
from engine.model.names import TopicName
from engine.model.reshape import KINDS, Reshape, commit, reserve
from engine.model.subscriptions import SubscriptionState


class ReshapePhase(enum.StrEnum):
    """How far a pending reshape has come. The values are stored in the topic's record: do not change."""

    CHILDREN = "children"
    TERMINATE = "terminate"
    UNDO = "undo"


# What may be recorded next. From TERMINATE and UNDO the only way on is a record with nothing pending.
_P = ReshapePhase
MOVES: dict[ReshapePhase, frozenset[ReshapePhase]] = {
    _P.CHILDREN: frozenset((_P.TERMINATE, _P.UNDO)),
    _P.TERMINATE: frozenset(),
    _P.UNDO: frozenset(),
}


class TopicReshaping(TopicChange):
    """One reshape of one topic, begun by its leader or resumed by the next.

    A method that raises leaves a record that says how far the change came.
    """

    def __init__(
        self,
        topic: TopicName,
        record: TopicRecord,
        term: int,
        resources: ScalableTopicResources,
        host: SegmentHost,
        clock: Clock,
    ) -> None:
        super().__init__(topic, record, term, resources, host)
        self._clock = clock

    @property
    def forward(self) -> bool:
        """Whether the recorded phase is behind the point of no return."""
        return self._change.phase == ReshapePhase.TERMINATE

    @property
    def reshape(self) -> Reshape:
        """The pending change. Raises CorruptionError, UnsupportedError for a kind that a newer version began."""
        if self._change.kind not in KINDS:
            what = f"an unfinished {self._change.kind!r}"
            raise UnsupportedError(f"{self.topic} has {what}, which this version cannot finish")
        return Reshape.of(self._change)

    @property
    def phase(self) -> ReshapePhase:
        """The recorded phase. Raises UnsupportedError for one that a newer version recorded."""
        try:
            return ReshapePhase(self._change.phase)
        except ValueError:
            known = ", ".join(ReshapePhase)
            raise UnsupportedError(
                f"the phase of the pending {self._change.kind} of {self.topic} must be one of {known}, "
                f"got {self._change.phase!r}: unknown to this version"
            ) from None

    @property
    def _change(self) -> PendingChange:
        change = self.record.layout.change
        if change is None:
            raise AssertionError(f"{self.topic} has no pending change")
        return change

    async def begin(self, reshape: Reshape) -> None:
        """Record the intent. Raises ConflictError when the record is old."""
        await self.save(reserve(self.record.layout, reshape, ReshapePhase.CHILDREN))

    async def move_to(self, phase: ReshapePhase) -> None:
        """Record the next phase. Raises ConflictError when the record is old."""
        if phase not in MOVES[self.phase]:
            raise AssertionError(f"reshape of {self.topic}: {self.phase} -> {phase}")
        await self.reached(replace(self._change, phase=phase))

    async def finish(self) -> None:
        """Go on from the recorded phase to the commit."""
        phases = [
            ChangePhase(ReshapePhase.CHILDREN, self._create_children),
            ChangePhase(ReshapePhase.TERMINATE, self._terminate),
        ]
        await run_phases(phases, self.phase, self.move_to)
        await self.save(commit(self.record.layout, self.reshape, self._clock.time_ms()))

    async def resume(self) -> None:
        """Finish the change when it is behind the point of no return, else undo it."""
        if self.reshape and self.phase is ReshapePhase.TERMINATE:
            await self.finish()
        else:
            await self.undo()

    async def undo(self) -> None:
        """Delete the children, then the intent; the epoch stays. Only before the point of no return."""
        if self.phase is not ReshapePhase.UNDO:
            await self.move_to(ReshapePhase.UNDO)
        await self.delete_segments(self.reshape.children)
        await self.save(replace(self.record.layout, change=None))

    async def _create_children(self) -> None:
        names = await self._discover()
        create = self.host.create_segment
        await together(create(self.spec(c), names, term=self.term) for c in self.reshape.children)

    async def _discover(self) -> list[str]:
        """The subscriptions of all parents, also those being created (a merge takes the union)."""
        layout, known = self.record.layout, await self.resources.list_subscriptions(self.topic)
        parents = [self.spec(layout.segment(i)) for i in self.reshape.parent_ids]
        found = await together(self.host.subscriptions(spec) for spec in parents)
        leaving = {s.name for s in known if s.state is SubscriptionState.DELETING}
        return sorted({s.name for s in known}.union(*found) - leaving)

    async def _terminate(self) -> None:
        """Seal the parents one after the other, by range; then hand their producers to the children.

        The children are not in the layout yet, so no producer can write to one before it has inherited.
        """
        layout, reshape = self.record.layout, self.reshape
        parents = [self.spec(layout.segment(i)) for i in reshape.parent_ids]
        ends = [await self.host.terminate_segment(spec, term=self.term) for spec in parents]
        producers = [end.producers for end in ends]
        inherit = self.host.inherit
        await together(inherit(self.spec(c), producers, term=self.term) for c in reshape.children)
