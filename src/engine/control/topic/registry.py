"""`Controllers`: the topic controllers of one broker: created on demand, released when idle.

lead(topic) --> get or create --> lead, or follow (NotOwnerError)
the store says: the leader's record is gone     --> a follower stands for election
                a newer term leads              --> a leader verifies that with the store, and gives up
                a record has a pending change   --> the leader completes it (resumption.py)
idle for two sweeps --> resign, forget; a request in the meantime waits, and gets a new controller
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.control.base.brokers import Brokers
from engine.control.base.config import ControlConfig
from engine.control.base.leadership import LeaderState
from engine.control.base.ports import SegmentHost
from engine.control.base.topic_records import LeaderRecord, ScalableTopicResources, TopicRecord
from engine.control.topic.resumption import Resumption
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError, TimeoutError
from engine.limits import RESUME_S_MAX
from engine.metadata import keys
from engine.metadata.store import Session
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.control.shape.shape import Outcome
    from engine.control.shape.topic_scaling import AutoScaleCounts
    from engine.control.topic.controller import ScalableTopicController
    from engine.control.topic.stats import ControlStatistics

log = logging.getLogger(__name__)


class Controllers:
    """Loop thread only. All leaderships of the broker depend on one session with the metadata store."""

    def __init__(
        self,
        resources: ScalableTopicResources,
        host: SegmentHost,
        *,
        clock: Clock,
        config: ControlConfig,
        broker_url: str,
        tasks: Supervisor,
        brokers: Brokers | None = None,
    ) -> None:
        """`brokers`: provides the session; without it, the controllers have one of their own."""
        self._resources = resources
        self._host = host
        self._clock = clock
        self._config = config
        self._broker_url = broker_url
        self._tasks = tasks
        self._brokers = brokers
        if brokers is not None:
            brokers.lost.append(self._session_lost)
        self._by_key: dict[str, ScalableTopicController] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}  # resigning; a successor waits for it
        self._session: Session | None = None
        self._session_lock = asyncio.Lock()
        self._sweeping = False
        self._closed = False
        # Called with a topic when its controller is made here, and when it is dropped.
        self.made: Callable[[TopicName], None] = lambda topic: None
        self.dropped: Callable[[TopicName], None] = lambda topic: None
        self._scaled: dict[str, AutoScaleCounts] = {}  # by topic
        self.reshapes: Counter[tuple[str, str, str]] = Counter()  # (topic, kind, "done" or "undone"), by this broker
        self.resumption = Resumption(tasks, unfinished=resources.unfinished, finish=self.finish_change)

    def keys(self) -> Collection[str]:
        """The keys of the records of topics that have a controller here."""
        return self._by_key.keys()

    def get(self, topic: TopicName) -> ScalableTopicController | None:
        """The topic's controller on this broker; None without one."""
        return self._by_key.get(keys.topic(topic))

    def statistics(self) -> ControlStatistics:
        """The topics led here, and the changes made here."""
        from engine.control.shape.topic_scaling import AutoScaleStatus
        from engine.control.topic.stats import ControlStatistics

        led = [c for c in self.led() if c.serving]
        scaling = {topic: AutoScaleStatus(self._config.auto_scale, counts=n) for topic, n in self._scaled.items() if n}
        scaling |= {str(c.topic): c.scaling.status for c in led}
        return ControlStatistics([(c.topic, c.layout) for c in led], dict(self.reshapes), scaling)

    def led(self) -> list[ScalableTopicController]:
        return [c for c in self._by_key.values() if c.leadership.leading]

    async def lead(self, topic: TopicName) -> ScalableTopicController:
        """The topic's controller, leading. Raises NotOwnerError, NotFoundError, AlreadyClosedError."""
        controller = await self._leading(topic)
        if controller.pending:
            self.resumption.resume(topic)
        return controller

    async def _leading(self, topic: TopicName) -> ScalableTopicController:
        key = keys.topic(topic)
        while True:
            while (leaving := self._leaving.get(key)) is not None:
                await shielded(leaving)
            controller = self._get_or_make(key, topic)
            try:
                await self._lead(controller)
            except NotFoundError:
                if self._by_key.get(key) is controller:
                    del self._by_key[key]
                    self.dropped(topic)
                raise
            if controller.leadership.state is not LeaderState.CLOSED:
                return controller

    def _get_or_make(self, key: str, topic: TopicName) -> ScalableTopicController:
        if self._closed:
            raise AlreadyClosedError("this broker is closing")
        controller = self._by_key.get(key)
        if controller is None:
            controller = self._by_key[key] = self._make(topic)
            self.made(topic)
            self._sweep_later()
        return controller

    async def _lead(self, controller: ScalableTopicController) -> None:
        session = self._session
        try:
            await controller.lead()
        except AlreadyClosedError:
            if self._brokers is not None and not self._closed:
                raise NotOwnerError("this broker's session with the metadata store is over; try again") from None
            if self._closed or self._session is not session or session is None:
                raise
            self._session = None  # expired, and with it all its leaderships: begin anew
            await controller.lead()

    def _make(self, topic: TopicName) -> ScalableTopicController:
        # What changes topics is loaded for the first one that is led here.
        from engine.control.shape.topic_scaling import AutoScaleCounts
        from engine.control.topic.controller import ScalableTopicController

        return ScalableTopicController(
            topic,
            resources=self._resources,
            host=self._host,
            clock=self._clock,
            config=self._config,
            broker_url=self._broker_url,
            session=self._get_session,
            unfinished=self.resumption.resume,
            ended=self._ended,
            scaled=self._scaled.setdefault(str(topic), AutoScaleCounts()),
            tasks=self._tasks,
        )

    def _ended(self, topic: TopicName, kind: str, outcome: Outcome) -> None:
        self.reshapes[str(topic), kind, outcome.value] += 1

    def _session_lost(self) -> None:
        for controller in list(self._by_key.values()):
            controller.lost()

    async def _get_session(self) -> Session:
        if self._brokers is not None:
            return await self._brokers.session()
        async with self._session_lock:
            if self._session is None:
                self._session = await self._resources.metadata.session()
            return self._session

    async def release(self, topic: TopicName) -> None:
        """Resign from a topic and drop its controller."""
        key = keys.topic(topic)
        controller = self._by_key.pop(key, None)
        if controller is None:
            return
        self.dropped(topic)
        if not (controller.serving and self._scaled.get(str(topic))):
            self._scaled.pop(str(topic), None)
        leaving = self._leaving[key] = asyncio.get_running_loop().create_future()
        try:
            await controller.release()
        finally:
            del self._leaving[key]
            leaving.set_result(None)

    async def finish_change(self, topic: TopicName) -> None:
        """Complete the pending change of a topic. Raises NotOwnerError, and the errors of the change."""
        while True:
            try:
                controller = await self._leading(topic)
            except NotFoundError:
                return
            try:
                await controller.resume()
                return
            except NotOwnerError as e:
                if controller.leadership.state is not LeaderState.CLOSED or self._closed:
                    if await controller.leadership.confirm():
                        raise TimeoutError(
                            f"one of its segments, or its record, is changing owners: {e.__cause__ or e}"
                        ) from e
                    raise
                # It was released while this call waited: try again with a new one.
            finally:
                if not controller.serving:
                    await self.release(topic)

    async def close(self) -> None:
        """Close all controllers, and end the session of their leaderships. Idempotent."""
        if self._closed:
            return
        self._closed = True
        controllers = list(self._by_key.values())
        self._by_key.clear()
        for controller in controllers:
            await controller.close(AlreadyClosedError("this broker is closing"))
        session, self._session = self._session, None
        if session is not None:
            try:
                await session.close()
            except AlreadyClosedError:
                return  # the store was closed first, which ended the session

    # What the metadata store says.

    def topic_seen(self, key: str, record: TopicRecord) -> None:
        """A topic's record was written."""
        if (controller := self._by_key.get(key)) is None:
            return
        controller.apply(record)
        if controller.pending and controller.leadership.leading:
            self.resumption.resume(
                controller.topic
            )  # by a leader before this one, late; or its own, which is then done

    def leader_seen(self, key: str, leader: LeaderRecord | None) -> None:
        """A topic's leader changed. If there is none now, brokers with a controller stand for election."""
        controller = self._by_key.get(key)
        if controller is None:
            return
        leadership = controller.leadership
        if leadership.leading and (leader is None or leader.term > leadership.term):
            self._tasks.spawn(self._verify(controller), f"leadership of {controller.topic}")
        elif leader is None and not leadership.leading:
            self._tasks.spawn(self._stand(controller), f"election for {controller.topic}")

    async def _verify(self, controller: ScalableTopicController) -> None:
        """Confirm the leadership with the store: the event may be older than the present term."""
        while controller.leadership.leading:
            try:
                if not await controller.leadership.confirm():
                    controller.lost()
                    await self._stand(controller)
                return
            except AlreadyClosedError:
                return
            except EngineError as e:
                log.warning("it is not known yet whether this broker leads %s: %s", controller.topic, e)
                await asyncio.sleep(RESUME_S_MAX)

    async def _stand(self, controller: ScalableTopicController) -> None:
        key = keys.topic(controller.topic)
        if self._by_key.get(key) is not controller:
            return
        try:
            await self.lead(controller.topic)
        except (NotOwnerError, NotFoundError, AlreadyClosedError):
            return
        except EngineError as e:
            log.warning("%s has no leader yet: %s", controller.topic, e)

    # Idle controllers.

    def _sweep_later(self) -> None:
        if not self._sweeping and self._tasks.spawn(self._sweep(), "idle controllers") is not None:
            self._sweeping = True

    async def _sweep(self) -> None:
        try:
            while self._by_key:
                await asyncio.sleep(self._config.controller_idle)
                for controller in list(self._by_key.values()):
                    await self._release_idle(controller)
        finally:
            self._sweeping = False

    async def _release_idle(self, controller: ScalableTopicController) -> None:
        if controller.touched or not controller.idle:
            controller.touched = False
            return
        try:
            await self.release(controller.topic)
        except EngineError as e:
            log.warning("resigning from %s failed: %s", controller.topic, e)
