"""`TopicScaling`: the auto-scale loop of one led topic (PIP-483, PIP-486).

    reason to act ---> read loads and policy ---> decide() ---> reshape, as an operator would ---> evaluate again
      consumers came or left (a burst is one)        |
      the broker's tick (judges traffic too)         +--> nothing: wait for a reason, or for a cooldown to end
      a cooldown has ended

A change is followed by another evaluation: a burst converges without waiting for ticks (semantics 35). One change runs
at a time, under the topic's lock, and only on the layout for which it was decided. After a failure the loop waits for
the next tick.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.aio.tasks import Supervisor
from engine.clock import Ages, Clock, ForwardSteps
from engine.control.base.loads import read_loads
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.policy.autoscale import decide
from engine.control.policy.decisions import Action, Decision, Merge, Nothing, ScaleReason, Split
from engine.control.policy.history import redated
from engine.control.shape.shape import Plan
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, NotFoundError, NotOwnerError
from engine.limits import AUTO_SCALE_BURST_S_MAX, AUTO_SCALE_HISTORY_MAX, AUTO_SCALE_QUIET_S
from engine.model.autoscale import AutoScalePolicy, resolve
from engine.model.layout import SegmentLayout
from engine.model.load import WINDOW_MS, ReportedLoad
from engine.model.names import TopicName
from engine.model.reshape import plan_merge, plan_rebucket, plan_split, spoken
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import SubscriptionKind

log = logging.getLogger(__name__)

_WAITING = {
    ScaleReason.MERGE_WINDOW,
    ScaleReason.MERGE_COOLDOWN,
    ScaleReason.SPLIT_COOLDOWN,
    ScaleReason.REBUCKET_COOLDOWN,
}


@dataclass(slots=True)
class AutoScaleCounts:
    """Changes by auto-scale to one topic on this broker, and how often guards held one back."""

    splits: int = 0
    merges: int = 0
    rebuckets: int = 0  # decisions; each may rebucket several segments
    failures: int = 0
    suppressed_max_segments: int = 0
    suppressed_max_depth: int = 0

    def __bool__(self) -> bool:
        return self != AutoScaleCounts()


@dataclass(frozen=True, slots=True)
class AutoScaleStatus:
    """The auto-scale state of a topic. `decision`: the last one, in JSON; None before the first.

    `last_change`: the last decision that changed the topic while this broker leads it.
    """

    policy: AutoScalePolicy
    decision: Mapping[str, Any] | None = None
    last_change: Mapping[str, Any] | None = None
    counts: AutoScaleCounts = field(default_factory=AutoScaleCounts)
    loads: Mapping[int, ReportedLoad] = field(default_factory=dict)  # by segment id
    leading: bool = False  # False: only policy and loads are known here


class TopicScaling:
    """Loop thread only. `members`: consumers by subscription or group, of one kind. `reshape`: the controller's."""

    def __init__(
        self,
        topic: TopicName,
        *,
        layout: Callable[[], SegmentLayout],
        members: Callable[[SubscriptionKind], Mapping[str, int]],
        reshape: Callable[[Plan], Awaitable[SegmentLayout]],
        resources: ScalableTopicResources,
        clock: Clock,
        broker_policy: AutoScalePolicy,
        counts: AutoScaleCounts,
        tasks: Supervisor,
    ) -> None:
        self.topic = topic
        self.status = AutoScaleStatus(broker_policy, counts=counts)  # at the last evaluation
        self._layout = layout
        self._members = members
        self._reshape = reshape
        self._resources = resources
        self._clock = clock
        self._broker_policy = broker_policy
        self._counts = counts
        self._tasks = tasks
        self._led = False
        # An evaluation is requested; it also judges traffic; more consumers may be joining.
        self._asked = self._traffic = self._joined = False
        self._failed = False  # since the last tick
        self._said = ""  # the last failure logged
        self._resting = True  # whether time alone changes nothing
        self._acting = False
        self._task: asyncio.Task[None] | None = None
        self._dropped = False  # the task was cancelled by end()
        self._timer: asyncio.TimerHandle | None = None
        self._judged = -math.inf  # when traffic was judged last; monotonic
        self._sharing = Peak()
        self._history: deque[dict[str, Any]] = deque(maxlen=AUTO_SCALE_HISTORY_MAX)  # the oldest first
        # Ages of segments and reports: cooldowns and windows do not follow changes of the wall clock.
        steps = ForwardSteps(clock)
        self._created, self._reported = Ages[int](clock, steps), Ages[int](clock, steps)

    # Its leader's life.

    def begin(self) -> None:
        """This broker leads now: continue what the last leader may have left."""
        self._led, self._failed, self._resting = True, False, True
        self._sharing = Peak()
        self._history.clear()
        self.status = replace(self.status, leading=True, decision=None, last_change=None)
        self.consumers_changed()

    def end(self) -> None:
        """This broker leads no more. A change under way completes; no other follows."""
        self._led = self._asked = self._traffic = False
        self.status = replace(self.status, leading=False)
        self._stop_timer()
        if self._task is not None and not self._acting:
            self._dropped = True
            self._task.cancel()

    @property
    def history(self) -> list[dict[str, Any]]:
        """Decisions since this broker leads the topic, the newest first. Those that say the same as the one before are
        one with it: `times`, and `lastMs` of the newest. `changed`: whether the topic was changed; `failure`: why not.
        """
        return [dict(one) for one in reversed(self._history)]

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nothing will be without new consumers or traffic."""
        return self._task is None and self._timer is None and self._resting

    # Reasons to evaluate.

    def consumers_changed(self) -> None:
        """A member came or left: evaluate at once when there are more members than segments."""
        sharing, demand = self._note_members()
        if self._led and not self._failed and max(sharing, demand) > len(self._layout().active):
            self._joined = True
            self._ask(traffic=False)

    def tick(self) -> None:
        """The broker's tick: evaluate, unless the topic's own interval is longer and not over."""
        interval_s = self.status.policy.auto_scale_interval
        longer = interval_s > self._broker_policy.auto_scale_interval
        if not longer or self._failed or self._clock.monotonic() - self._judged >= interval_s:
            self.evaluate()

    def loaded(self) -> None:
        """A segment has load: where the topic's interval is shorter than the broker's, do not wait for the tick."""
        interval_s = self.status.policy.auto_scale_interval
        shorter = interval_s < self._broker_policy.auto_scale_interval
        if self._led and shorter and self._timer is None and self._task is None:
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._cooled)

    def evaluate(self) -> None:
        """Judge traffic too, and retry after a failure."""
        self._note_members()
        self._failed = False
        self._ask(traffic=True)

    def _note_members(self) -> tuple[int, int]:
        sharing = max(self._members(SubscriptionKind.STREAM).values(), default=0)
        self._sharing.note(self._clock.monotonic(), sharing)
        return sharing, max(self._members(SubscriptionKind.CHECKPOINT).values(), default=0)

    def _ask(self, *, traffic: bool) -> None:
        if not self._led:
            return
        self._asked, self._traffic = True, self._traffic or traffic
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), f"auto-scale of {self.topic}")
            if self._task is not None:
                self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        dropped, self._dropped, self._task = self._dropped, False, None
        if self._asked and dropped:  # requested by a new leadership while the last one's evaluation was being cancelled
            self._ask(traffic=self._traffic)

    async def _run(self) -> None:
        while self._asked:
            await self._burst()
            traffic, self._traffic, self._asked = self._traffic, False, False
            self._stop_timer()
            if await self._evaluate(traffic) and self._led:
                self._asked = True  # for consumers only: traffic must be reported anew first

    async def _burst(self) -> None:
        """Wait for consumers that join in quick succession, so that they cause one change instead of many."""
        end = self._clock.monotonic() + AUTO_SCALE_BURST_S_MAX
        while self._joined and self._clock.monotonic() < end:
            self._joined = False
            await asyncio.sleep(AUTO_SCALE_QUIET_S)
        self._joined = False

    # One evaluation.

    async def _evaluate(self, traffic: bool) -> bool:
        """Whether to evaluate again at once, because the topic has changed."""
        try:
            decision = await self._decide(traffic)
            return not isinstance(decision, Nothing) and await self._act(decision)
        except (NotOwnerError, NotFoundError, AlreadyClosedError):
            return False  # led elsewhere, or deleted
        except EngineError as e:
            self._failed, self._resting = True, False
            if self._history:
                self._history[-1]["failure"] = str(e)
            self._counts.failures += 1
            level = logging.DEBUG if str(e) == self._said else logging.WARNING  # repeated failures are logged once
            self._said = str(e)
            log.log(level, "%s: auto-scale retries later: %s", self.topic, e)
            return False

    async def _decide(self, traffic: bool) -> Decision:
        namespace = await self._resources.load_namespace_auto_scale_policy(self.topic.tenant, self.topic.namespace)
        loads = await read_loads(self._resources.metadata, self.topic)
        layout, now_ms = self._layout(), self._clock.time_ms()  # until the change no other task runs
        layout, dated = self._redated(layout, loads, now_ms)
        policy = resolve(self._broker_policy, namespace, layout.auto_scale_policy)
        decision = decide(
            layout,
            dated,
            self._members(SubscriptionKind.STREAM),
            policy,
            now_ms,
            checkpoint_consumers=self._members(SubscriptionKind.CHECKPOINT),
            peak_consumers=self._sharing.within(self._clock.monotonic(), policy.merge_window),
            traffic=traffic,
        )
        self._note(decision, policy, loads, now_ms)
        if traffic:
            self._judged = self._clock.monotonic()
            self._resting = _rests(decision, layout, dated, now_ms)
        self._look_again(decision, policy, now_ms)
        return decision

    def _redated(
        self, layout: SegmentLayout, loads: Mapping[int, ReportedLoad], now_ms: int
    ) -> tuple[SegmentLayout, Mapping[int, ReportedLoad]]:
        created_s = self._created.update({i: segment.created_at_ms for i, segment in layout.segments.items()})
        reported_s = self._reported.update({i: report.modified_ms for i, report in loads.items()})
        return redated(layout, loads, created_s, reported_s, now_ms)

    def _note(
        self, decision: Decision, policy: AutoScalePolicy, loads: Mapping[int, ReportedLoad], now_ms: int
    ) -> None:
        if policy.problem and policy.problem != self.status.policy.problem:
            log.warning("%s: auto-scale is disabled, its policy is contradictory: %s", self.topic, policy.problem)
        reasons = {held.reason for held in decision.held}
        self._counts.suppressed_max_segments += ScaleReason.MAX_SEGMENTS in reasons
        self._counts.suppressed_max_depth += ScaleReason.MAX_DEPTH in reasons
        described = in_json(decision, now_ms)
        self.status = replace(self.status, policy=policy, decision=described, loads=loads)
        self._remember(described)

    def _remember(self, described: dict[str, Any]) -> None:
        """A loop that decides the same at every tick must not drive out what it did before."""
        last = self._history[-1] if self._history else None
        same = ("action", "segments", "reason", "suppressed")
        if last is not None and not last["changed"] and all(last[name] == described[name] for name in same):
            last["times"] += 1
            last["lastMs"] = described["atMs"]
            last["failure"] = None
        else:
            more = {"times": 1, "lastMs": described["atMs"], "changed": False, "failure": None}
            self._history.append({**described, **more})

    def _look_again(self, decision: Decision, policy: AutoScalePolicy, now_ms: int) -> None:
        """When a cooldown ends, and after the topic's interval where that is shorter than the broker's."""
        pauses_s: list[float] = []
        if isinstance(decision, Nothing) and decision.again_ms is not None:
            pauses_s.append((decision.again_ms - now_ms) / 1000)
        if policy.auto_scale_interval < self._broker_policy.auto_scale_interval and not self._resting:
            pauses_s.append(policy.auto_scale_interval)
        if pauses_s:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(min(pauses_s), self._cooled)

    def _cooled(self) -> None:
        self._timer = None
        self._ask(traffic=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # One change.

    async def _act(self, decision: Action) -> bool:
        which = spoken(decision.segment_ids)
        log.info(
            "%s: auto-scale: %s of %s, for: %s%s",
            self.topic,
            _verb(decision),
            which,
            decision.reason,
            _cause_text(decision),
            extra={"change": _verb(decision), "segments": list(decision.segment_ids), "why": str(decision.reason)},
        )
        epoch = self._layout().epoch
        self._acting = True
        try:
            for plan in _plans(decision, epoch):
                if not self._led:
                    return False
                epoch = (await self._reshape(plan)).epoch
        except InvalidArgumentError:
            if self._layout().epoch == epoch:
                raise
            return True  # another change was faster: decide anew
        finally:
            self._acting = False
        counts, kind = self._counts, _verb(decision)
        counts.splits += kind == "split"
        counts.merges += kind == "merge"
        counts.rebuckets += kind == "rebucket"
        self.status = replace(self.status, last_change=self.status.decision)
        if self._history:  # empty where another leadership has begun meanwhile
            self._history[-1]["changed"] = True
        return True


class Peak:
    """The maximum of a number over a recent time. A value holds until the next one."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def note(self, now: float, value: int) -> None:
        """The value from now on."""
        if not self._marks or self._marks[-1][1] != value:
            self._marks.append((now, value))

    def within(self, now: float, window: float) -> int | None:
        """The maximum; None while the window is not fully covered. Drops older values."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - window:
            marks.popleft()
        if not marks or marks[0][0] > now - window:
            return None
        return max(value for _, value in marks)


def in_json(decision: Decision, now_ms: int) -> dict[str, Any]:
    """A decision for statistics: the change, its segments, its reason, and what guards held back."""
    cause = decision.cause if isinstance(decision, Split) else None
    above = None if cause is None else {"rate": cause.name, "value": cause.value, "threshold": cause.threshold}
    return {
        "action": _verb(decision),
        "segments": list(decision.segment_ids),
        "reason": str(decision.reason),
        "suppressed": [str(held.reason) for held in decision.held],
        "cause": above,
        "atMs": now_ms,
    }


def _cause_text(decision: Decision) -> str:
    cause = decision.cause if isinstance(decision, Split) else None
    return "" if cause is None else f", {cause.name} {cause.value:,.0f}/s is above {cause.threshold:,.0f}/s"


def _verb(decision: Decision) -> str:
    return type(decision).__name__.lower()


def _plans(decision: Action, epoch: int) -> Iterator[Plan]:
    """The plans of a decision, in order. A split or merge applies only to the layout that was decided on."""
    if isinstance(decision, Split):
        split = decision
        yield lambda layout: plan_split(_same(layout, epoch), split.segment_id)
    elif isinstance(decision, Merge):
        merge = decision
        yield lambda layout: plan_merge(_same(layout, epoch), merge.first_id, merge.second_id, merge.buckets_max)
    else:
        for segment_id, buckets in decision.targets:
            yield partial(plan_rebucket, segment_id=segment_id, buckets=buckets)


def _same(layout: SegmentLayout, epoch: int) -> SegmentLayout:
    if layout.epoch != epoch:
        raise InvalidArgumentError(f"the layout must have epoch {epoch}, got {layout.epoch}")
    return layout


def _rests(decision: Decision, layout: SegmentLayout, loads: Mapping[int, ReportedLoad], now_ms: int) -> bool:
    """Whether another evaluation would change nothing without new consumers or traffic."""
    if decision.reason in (ScaleReason.DISABLED, ScaleReason.INVALID_POLICY):
        return True
    if not isinstance(decision, Nothing) or _WAITING & {held.reason for held in decision.held}:
        return False
    return all(_silent(segment, loads, len(layout.active) > 1, now_ms) for segment in layout.active)


def _silent(segment: SegmentInfo, loads: Mapping[int, ReportedLoad], mergeable: bool, now_ms: int) -> bool:
    """A young segment is about to report, which matters where it could be merged."""
    report = loads.get(segment.segment_id)
    if report is None:
        return not mergeable or now_ms - segment.created_at_ms >= WINDOW_MS
    return report.stats.silent
