"""`TopicShape`: a topic's record as its controller knows it, and the changes of its shape (PIP-468, SEMANTICS 42)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from engine.clock import Clock
from engine.control.base.leadership import Leadership
from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.reshaping import TopicReshaping
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
from engine.model.reshape import Reshape, prune_segment

log = logging.getLogger(__name__)

Plan = Callable[[SegmentLayout], Reshape]  # what to do with the layout as it will be then; InvalidArgumentError

Ended = Callable[[TopicName, str, bool], None]  # (topic, kind of change, whether it is done; else it was undone)

_BEGIN_ATTEMPTS_MAX = 2


class TopicShape:
    """Loop thread only; whoever changes something is the leader and holds the controller's lock.

    `changed` hears of every newer layout, `unfinished` of a reshape that must be brought to its end later, `ended` of
    each that came to its end here.
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
        ended: Ended,
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
        """Whether the topic exists and is not being deleted, as far as is known here."""
        return self.record is not None and not self.record.layout.deleting

    @property
    def pending(self) -> bool:
        """Whether a reshape was begun and is neither finished nor undone, as far as is known here."""
        return self.serving and self.current.layout.change is not None

    def apply(self, record: TopicRecord) -> None:
        """A record was read or written; an older one is ignored."""
        if self.record is None or record.version > self.record.version:
            self.record = record
            self._changed(record.layout)

    async def reload(self) -> None:
        """Learn what the store says now."""
        record = await self._resources.load_topic(self.topic)
        if record is None:
            self.record = None
        else:
            self.apply(record)

    async def rewrite(self, change: Callable[[SegmentLayout], SegmentLayout]) -> None:
        """Change facts that are not the shape; the epoch stays. Raises ConflictError when others write without end."""
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
        """See the controller. Asked for what is pending behind its point of no return: that is finished."""
        await self.reload()
        pending = self._pending()
        repeated = pending is not None and _is_repeated(pending, plan)
        await self.settle()
        if not repeated:
            await self._reshape(plan)
        return self.current.layout

    async def settle(self) -> None:
        """Before another change: finish or undo the reshape that is pending, if there is one."""
        pending = self._pending()
        if pending is not None:
            await self._advance(pending.resume, pending, "that was pending ")

    async def _reshape(self, plan: Plan) -> None:
        begun: list[Reshape] = []
        recorded: list[Reshape] = []
        try:
            reshaping = await self._begin(plan, begun, recorded)
            await self._advance(reshaping.finish, reshaping)
        except InvalidArgumentError:
            raise
        except (ConflictError, FencedError, NotOwnerError) as e:
            known = await self._is_done(begun)
            if known is None and recorded and not await self._leads():
                raise UnknownOutcomeError(  # NotOwnerError would say that nothing was done, and have it asked for again
                    f"{self.topic}: the {recorded[0]} was begun and will be finished by another broker, which leads "
                    "by now; look at the layout"
                ) from e
            if not known:
                raise
        except Exception:
            if not await self._is_done(begun):
                raise
        finally:
            if self.pending:
                self._unfinished(self.topic)

    async def _begin(self, plan: Plan, begun: list[Reshape], recorded: list[Reshape]) -> TopicReshaping:
        """The change with its intent recorded. The record may be one that an earlier leader was late to write."""
        for attempt in itertools.count(1):
            reshaping, reshape = self._reshaping(), plan(self.current.layout)
            begun.append(reshape)
            try:
                await reshaping.begin(reshape)
                break
            except ConflictError:
                await self._confirm()
                await self.reload()
                if attempt == _BEGIN_ATTEMPTS_MAX or not self.serving or self.pending:
                    raise
        recorded.append(reshape)
        self.apply(reshaping.record)
        await self._confirm()  # else the next leader may not have seen it; when it does, it undoes it
        return reshaping

    async def _is_done(self, begun: list[Reshape]) -> bool | None:
        """After a failure: whether it is done all the same. What can be undone is undone, if that works now.

        None: it is not, and will be; what is before its point of no return will be undone.
        """
        try:
            await self._confirm()
            await self.reload()
            pending = self._pending()
            if pending is not None and not pending.forward:
                await self._advance(pending.undo, pending)
        except (EngineError, ConflictError) as e:
            log.warning("%s: a change failed; it is finished or undone later: %s", self.topic, e)
            with suppress(EngineError):
                await self.reload()  # by who leads now, it may be so already
        if (pending := self._pending()) is not None and pending.forward:
            return None
        known = self.current.layout.segments if self.serving else {}
        return any(all(known.get(c.segment_id) for c in reshape.children) for reshape in begun)

    async def _advance(self, act: Callable[[], Awaitable[None]], reshaping: TopicReshaping, which: str = "") -> None:
        reshape, epoch, begun = reshaping.reshape, reshaping.record.layout.epoch, self._clock.monotonic()
        try:
            await act()
            done = reshaping.record.layout.epoch > epoch
            self._ended(self.topic, reshape.kind, done)
            end, seconds = "done" if done else "undone", self._clock.monotonic() - begun
            log.info("%s: the %s %swas %s in %.3f s", self.topic, reshape, which, end, seconds)
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
        """Forget a sealed segment, then delete it. False: it may not go now. InvalidArgumentError: it is active.

        It goes when it has no parents left and every subscription has acknowledged all of it, which is asked here once
        more: a seek may have come between.
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
        except EngineError as e:  # its owner collects what no layout names
            log.warning("%s left the layout; its store is still there: %s", spec.name, e)


def _is_repeated(pending: TopicReshaping, plan: Plan) -> bool:
    """Whether `plan` asks for what is being finished anyway: the same call once more, after a failure."""
    if not pending.forward:
        return False
    try:
        return plan(pending.record.layout).same_as(pending.reshape)
    except InvalidArgumentError:
        return False
