"""`TopicShape`: a topic's record as its controller knows it, and the changes of its shape (PIP-468, semantics 42)."""

from __future__ import annotations

import enum
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from engine.clock import Clock
from engine.control.base.leadership import Leadership
from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.reshaping import ReshapePhase, TopicReshaping
from engine.errors import (
    EngineError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    UnknownOutcomeError,
)
from engine.metadata.store import ConflictError
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.reshape import Reshape, children_of, prune_segment
from engine.model.segment import SegmentInfo

log = logging.getLogger(__name__)

Plan = Callable[[SegmentLayout], Reshape]  # plans a change of the layout as it is then; raises InvalidArgumentError

_BEGIN_ATTEMPTS_MAX = 2


class Outcome(enum.Enum):
    """What has come of a reshape, by the topic's record."""

    DONE = "done"  # its children are in the layout
    UNDONE = "undone"  # the layout is as before, and nothing of it is pending
    WILL_FINISH = "will finish"  # pending behind the point of no return: a leader finishes it
    WILL_UNDO = "will be undone"  # pending before that point: a leader undoes it


ReshapeEnded = Callable[[TopicName, str, Outcome], None]  # (topic, kind of change, DONE or UNDONE)


def outcome_of(planned: Iterable[Reshape], layout: SegmentLayout | None) -> Outcome:
    """What has come of these plans of one attempt, of which at most one was recorded. None: the topic is gone.

    Ids alone do not tell: a plan that was not recorded may have lost its ids to the plan of another leader.
    """
    if layout is None or layout.deleting:
        return Outcome.UNDONE
    change = layout.change
    pending = {} if change is None else {child.segment_id: child for child in children_of(change)}
    for reshape in planned:
        if _are_in(layout.segments, reshape):
            return Outcome.DONE
        if change is not None and _are_in(pending, reshape):
            return Outcome.WILL_FINISH if change.phase == ReshapePhase.TERMINATE else Outcome.WILL_UNDO
    return Outcome.UNDONE


def _are_in(segments: Mapping[int, SegmentInfo], reshape: Reshape) -> bool:
    found = ((segments.get(child.segment_id), child) for child in reshape.children)
    return all(s and (s.hash_range, s.bucket_ends) == (c.hash_range, c.bucket_ends) for s, c in found)


class Attempt:
    """One call's attempt at a reshape. `recorded`: the plan whose intent is surely in the topic's record."""

    def __init__(self, plan: Plan) -> None:
        self.planned: list[Reshape] = []  # all, since a write that failed may have reached the store
        self.recorded: Reshape | None = None
        self._plan = plan

    def plan_for(self, layout: SegmentLayout) -> Reshape:
        """Plan the change of this layout. Raises InvalidArgumentError."""
        reshape = self._plan(layout)
        self.planned.append(reshape)
        return reshape


class TopicShape:
    """One topic's record and changes of its shape. Callers that change it lead, and hold the controller's lock.

    `changed` is called with every newer layout, `unfinished` with a topic whose reshape must be completed later,
    `ended` after each reshape that this broker completed or undid.
    """

    def __init__(
        self,
        topic: TopicName,
        *,
        leadership: Leadership,
        resources: ScalableTopicResources,
        host: SegmentHost,
        clock: Clock,
        changed: Callable[[SegmentLayout], None],
        unfinished: Callable[[TopicName], None],
        ended: ReshapeEnded,
    ) -> None:
        self.topic = topic
        self.record: TopicRecord | None = None
        self._leadership = leadership
        self._resources = resources
        self._host = host
        self._clock = clock
        self._changed = changed
        self._unfinished = unfinished
        self._ended = ended

    # The record.

    @property
    def current(self) -> TopicRecord:
        """The newest record known here. Raises NotFoundError when there is none."""
        return self.found(self.record)

    def found(self, record: TopicRecord | None) -> TopicRecord:
        """Raises NotFoundError for None."""
        if record is None:
            raise NotFoundError(f"{self.topic} does not exist")
        return record

    @property
    def serving(self) -> bool:
        """Whether the topic exists and is not being deleted, by the newest record known here."""
        return self.record is not None and not self.record.layout.deleting

    @property
    def pending(self) -> bool:
        """Whether a reshape was begun and is neither finished nor undone, by the newest record known here."""
        return self.serving and self.current.layout.change is not None

    def apply(self, record: TopicRecord) -> None:
        """Keep a record that was read or written, unless a newer one is known."""
        if self.record is None or record.version > self.record.version:
            self.record = record
            self._changed(record.layout)

    async def reload(self) -> None:
        """Read the record from the store."""
        record = await self._resources.load_topic(self.topic)
        if record is None:
            self.record = None
        else:
            self.apply(record)

    async def rewrite(self, change: Callable[[SegmentLayout], SegmentLayout]) -> None:
        """Change facts that are not the shape; the epoch stays. Raises ConflictError after two lost races."""
        for attempt in itertools.count(1):
            await self.reload()
            try:
                current = self.current
                self.apply(await self._resources.save_topic(self.topic, change(current.layout), current.version))
                return
            except ConflictError:
                if attempt == _BEGIN_ATTEMPTS_MAX:
                    raise

    # Split, merge, rebucket.

    async def reshape(self, plan: Plan) -> SegmentLayout:
        """See the controller. When `plan` asks for the change that is pending and will be finished, finish that."""
        await self.reload()
        pending = self._pending()
        repeated = pending is not None and _is_repeated(pending, plan)
        await self.settle()
        if not repeated:
            await self._reshape(plan)
        return self.current.layout

    async def settle(self) -> None:
        """Finish or undo the pending reshape, if there is one: before any other change."""
        pending = self._pending()
        if pending is not None:
            await self._advance(pending.resume, pending, "that was pending ")

    async def _reshape(self, plan: Plan) -> None:
        attempt = Attempt(plan)
        try:
            reshaping = await self._begin(attempt)
            await self._advance(reshaping.finish, reshaping)
        except InvalidArgumentError:
            raise
        except Exception as e:
            outcome = await self._clear_up(attempt)
            if outcome is Outcome.DONE:
                return
            replaced = isinstance(e, (ConflictError, FencedError, NotOwnerError))
            if outcome is Outcome.WILL_FINISH and attempt.recorded and replaced and not await self._leads():
                raise UnknownOutcomeError(  # NotOwnerError means that nothing was done: the client would ask again
                    f"{self.topic}: the {attempt.recorded} was begun and will be finished by another broker, which "
                    "leads by now; look at the layout"
                ) from e
            raise
        finally:
            if self.pending:
                self._unfinished(self.topic)

    async def _begin(self, attempt: Attempt) -> TopicReshaping:
        """Record the intent. A conflict is tried again: an earlier leader may have written the record late."""
        for number in itertools.count(1):
            reshaping, reshape = self._reshaping(), attempt.plan_for(self.current.layout)
            try:
                await reshaping.begin(reshape)
                break
            except ConflictError:
                await self._confirm()
                await self.reload()
                if number == _BEGIN_ATTEMPTS_MAX or not self.serving or self.pending:
                    raise
        attempt.recorded = reshape
        self.apply(reshaping.record)
        await self._confirm()  # a leader that was elected before the write undoes it
        return reshaping

    async def _clear_up(self, attempt: Attempt) -> Outcome:
        """After a failure: undo the pending change if that is possible now, and return what came of the attempt."""
        try:
            await self._confirm()
            await self.reload()
            pending = self._pending()
            if pending is not None and not pending.forward:
                await self._advance(pending.undo, pending)
        except (EngineError, ConflictError) as e:
            log.warning("%s: a change failed; it is finished or undone later: %s", self.topic, e)
            with suppress(EngineError):
                await self.reload()  # a newer leader may have finished or undone it already
        return outcome_of(attempt.planned, None if self.record is None else self.record.layout)

    async def _advance(self, act: Callable[[], Awaitable[None]], reshaping: TopicReshaping, which: str = "") -> None:
        reshape, epoch, begun = reshaping.reshape, reshaping.record.layout.epoch, self._clock.monotonic()
        try:
            await act()
            outcome = Outcome.DONE if reshaping.record.layout.epoch > epoch else Outcome.UNDONE
            self._ended(self.topic, reshape.kind, outcome)
            seconds = self._clock.monotonic() - begun
            log.info("%s: the %s %swas %s in %.3f s", self.topic, reshape, which, outcome.value, seconds)
        finally:
            self.apply(reshaping.record)

    async def _leads(self) -> bool:
        try:
            return await self._leadership.confirm()
        except EngineError:
            return False

    async def _confirm(self) -> None:
        if not await self._leadership.confirm():
            raise self._leadership.not_owner(None)

    def _pending(self) -> TopicReshaping | None:
        return self._reshaping() if self.pending else None

    def _reshaping(self) -> TopicReshaping:
        term = self._leadership.term
        return TopicReshaping(self.topic, self.current, term, self._resources, self._host, self._clock)

    # Prune.

    async def prune(self, segment_id: int) -> bool:
        """Remove a sealed segment from the layout, then delete it. False: not now. InvalidArgumentError: it is active.

        It is removed when it has no parents left and every subscription has acknowledged all of it, which is checked
        here once more: a seek may have moved a cursor back.
        """
        await self.settle()
        layout = self.current.layout
        segment = layout.segments.get(segment_id)
        if segment is None or segment.parent_ids:
            return False
        pruned, spec = prune_segment(layout, segment_id), segment_spec(self.topic, layout, segment)
        for facts in await self._resources.list_subscriptions(self.topic):
            if await self._host.backlog(spec, facts.name):
                return False
        self.apply(await self._resources.save_topic(self.topic, pruned, self.current.version))
        await self._delete_pruned(spec)
        return True

    async def _delete_pruned(self, spec: SegmentSpec) -> None:
        try:
            await self._host.delete_segment(spec, term=self._leadership.term)
        except EngineError as e:  # its owner deletes stores that no layout names
            log.warning("%s left the layout; its store is still there: %s", spec.name, e)


def _is_repeated(pending: TopicReshaping, plan: Plan) -> bool:
    """Whether `plan` asks for the change that will be finished anyway: the same call again, after a failure."""
    if not pending.forward:
        return False
    try:
        return plan(pending.record.layout).same_as(pending.reshape)
    except InvalidArgumentError:
        return False
