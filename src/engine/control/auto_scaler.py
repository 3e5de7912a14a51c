"""`AutoScaling`: auto-scale on one broker: its tick, and the policies (PIP-483)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.aio.tasks import Supervisor
from engine.control.base.config import ControlConfig
from engine.control.base.loads import read_loads
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.topic.registry import Controllers
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError
from engine.model.autoscale import AutoScalePolicy, AutoScalePolicyOverride, resolve
from engine.model.names import TopicName, parse_namespace

if TYPE_CHECKING:
    from engine.control.shape.topic_scaling import AutoScaleStatus

log = logging.getLogger(__name__)

_AT_ONCE_MAX = 16


class AutoScaling:
    """Loop thread only. A topic without load that is not led here costs nothing."""

    def __init__(
        self, controllers: Controllers, resources: ScalableTopicResources, config: ControlConfig, tasks: Supervisor
    ) -> None:
        self._controllers = controllers
        self._resources = resources
        self._config = config
        self._tasks = tasks
        self._loaded: set[TopicName] = set()  # since the last tick

    def start(self) -> None:
        self._tasks.spawn(self._tick(), "auto-scale")

    def loaded(self, topic: TopicName) -> None:
        """A segment here carries load: its topic must have a leader, or it would never scale."""
        self._loaded.add(topic)
        controller = self._controllers.get(topic)
        if controller is not None:
            controller.scaling.loaded()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.auto_scale_interval)
            for controller in self._controllers.led():
                controller.scaling.tick()
            loaded, self._loaded = list(self._loaded), set()
            for first in range(0, len(loaded), _AT_ONCE_MAX):
                await asyncio.gather(*map(self._find_leader, loaded[first : first + _AT_ONCE_MAX]))

    async def _find_leader(self, topic: TopicName) -> None:
        """Lead the topic if no broker does and its policy enables auto-scale; an idle leader resigns later."""
        controller = self._controllers.get(topic)
        if controller is not None and controller.leadership.leading:
            return
        try:
            if await self._resources.load_leader(topic) is None and (await self.effective(topic)).enabled:
                (await self._controllers.lead(topic)).scaling.evaluate()
        except (NotOwnerError, NotFoundError, AlreadyClosedError):
            return
        except EngineError as e:
            log.warning("%s has load, but no leader was found: %s", topic, e)
        except Exception:  # the tick serves all topics
            log.exception("%s has load, but the search for its leader failed", topic)

    # Policies and what came of them.

    async def status(self, topic: str | TopicName) -> AutoScaleStatus:
        """The effective policy and the last load reports; from the leader, also the last decision. Raises
        NotFoundError.
        """
        from engine.control.shape.topic_scaling import AutoScaleStatus

        name = TopicName.parse(topic)
        policy, loads = await self.effective(name), await read_loads(self._resources.metadata, name)
        controller = self._controllers.get(name)
        if controller is None or not controller.leadership.leading:
            return AutoScaleStatus(policy, loads=loads)
        return replace(controller.scaling.status, policy=policy, loads=loads)

    async def history(self, topic: str | TopicName) -> dict[str, Any]:
        """What was decided since this broker leads the topic: {"leading", "decisions"}. Raises NotFoundError."""
        name = TopicName.parse(topic)
        await self._load(name)
        controller = self._controllers.get(name)
        if controller is None or not controller.leadership.leading:
            return {"leading": False, "decisions": []}
        return {"leading": True, "decisions": controller.scaling.history}

    async def get_policy(self, topic: str | TopicName) -> AutoScalePolicyOverride | None:
        """The topic's own override. Raises NotFoundError."""
        return (await self._load(TopicName.parse(topic))).layout.auto_scale_policy

    async def set_policy(self, topic: str | TopicName, override: AutoScalePolicyOverride | None) -> None:
        """Replace the topic's override (None: remove it), effective at once. Raises NotFoundError, NotOwnerError."""
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.set_auto_scale_policy(override or None)

    async def get_namespace_policy(self, namespace: str) -> AutoScalePolicyOverride | None:
        """The override that a "tenant/namespace" sets for its topics."""
        return await self._resources.load_namespace_auto_scale_policy(*parse_namespace(namespace))

    async def set_namespace_policy(self, namespace: str, override: AutoScalePolicyOverride | None) -> None:
        """Replace the namespace's override (None: remove it). Its topics follow at their next look."""
        await self._resources.save_namespace_auto_scale_policy(*parse_namespace(namespace), override or None)

    async def effective(self, topic: TopicName) -> AutoScalePolicy:
        """What holds for the topic, of all three levels. Raises NotFoundError."""
        layout = (await self._load(topic)).layout
        namespace = await self._resources.load_namespace_auto_scale_policy(topic.tenant, topic.namespace)
        return resolve(self._config.auto_scale, namespace, layout.auto_scale_policy)

    async def _load(self, topic: TopicName) -> TopicRecord:
        record = await self._resources.load_topic(topic)
        if record is None or record.layout.deleting:
            raise NotFoundError(f"{topic} does not exist")
        return record
