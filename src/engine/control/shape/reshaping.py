"""Splitting, merging and rebucketing segments of a live topic, step by step as PIP-468 orders them (SEMANTICS 42).

    begin       the intent is recorded: who takes whose place, under ids that are never used again
    children    subscriptions are discovered, the children created with a cursor at the earliest of each
    terminate   POINT OF NO RETURN, recorded; the parents are sealed durably, the children inherit what they knew
    commit      one compare-and-set: parents sealed, children active, the epoch one higher, nothing pending

What was begun and did not reach `terminate` is undone: the children are deleted, then the intent. What did is finished.
The layout that everybody sees is the old one until the commit, so the topic serves all the while.
"""

from __future__ import annotations

from dataclasses import replace

from engine.clock import Clock
from engine.control.base.ports import SegmentHost
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.changes import Phase, TopicChange, run_phases, together
from engine.errors import UnsupportedError
from engine.model.layout import PendingChange
from engine.model.names import TopicName
from engine.model.reshape import KINDS, Reshape, commit, reserve
from engine.model.subscriptions import SubscriptionState

CHILDREN, TERMINATE, UNDO = "children", "terminate", "undo"


class TopicReshaping(TopicChange):
    """One reshape of one topic, begun by its leader or resumed by the next. What it raises leaves the record saying
    how far it came.
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
        return self._change.phase == TERMINATE

    @property
    def reshape(self) -> Reshape:
        """What is pending. Raises CorruptionError, UnsupportedError for a kind that a newer version began."""
        if self._change.kind not in KINDS:
            what = f"an unfinished {self._change.kind!r}"
            raise UnsupportedError(f"{self.topic} has {what}, which this version cannot finish")
        return Reshape.of(self._change)

    @property
    def _change(self) -> PendingChange:
        change = self.record.layout.change
        if change is None:
            raise AssertionError(f"{self.topic} has no pending change")
        return change

    async def begin(self, reshape: Reshape) -> None:
        """Record the intent. Raises ConflictError when the record is old."""
        await self.save(reserve(self.record.layout, reshape, CHILDREN))

    async def finish(self) -> None:
        """Go on from the recorded phase to the commit."""
        phases = [Phase(CHILDREN, self._create_children), Phase(TERMINATE, self._terminate)]
        await run_phases(phases, self._change.phase, self._reached)
        await self.save(commit(self.record.layout, self.reshape, self._clock.time_ms()))

    async def resume(self) -> None:
        """Finish it behind the point of no return, undo it before."""
        if self.reshape and self.forward:
            await self.finish()
        elif self._change.phase in (CHILDREN, UNDO):
            await self.undo()
        else:
            raise UnsupportedError(f"the {self._change.kind} of {self.topic} stands at {self._change.phase!r}: unknown")

    async def undo(self) -> None:
        """The children are gone and nothing is pending; the epoch is as before. Only before the point of no return."""
        if self._change.phase != UNDO:
            await self._reached(UNDO)
        await self.delete_segments(self.reshape.children)
        await self.save(replace(self.record.layout, change=None))

    async def _reached(self, phase: str) -> None:
        await self.reached(replace(self._change, phase=phase))

    async def _create_children(self) -> None:
        names = await self._discover()
        create = self.host.create_segment
        await together(create(self.spec(c), names, term=self.term) for c in self.reshape.children)

    async def _discover(self) -> list[str]:
        """The subscriptions of all parents, those that are just being created too (a merge takes the union)."""
        layout, known = self.record.layout, await self.resources.list_subscriptions(self.topic)
        parents = [self.spec(layout.segment(i)) for i in self.reshape.parent_ids]
        found = await together(self.host.subscriptions(spec) for spec in parents)
        leaving = {s.name for s in known if s.state is SubscriptionState.DELETING}
        return sorted({s.name for s in known}.union(*found) - leaving)

    async def _terminate(self) -> None:
        """The parents one after the other, by range; then the children, before anybody can write to them."""
        layout, reshape = self.record.layout, self.reshape
        parents = [self.spec(layout.segment(i)) for i in reshape.parent_ids]
        ends = [await self.host.terminate_segment(spec, term=self.term) for spec in parents]
        producers = [end.producers for end in ends]
        inherit = self.host.inherit
        await together(inherit(self.spec(c), producers, term=self.term) for c in reshape.children)
