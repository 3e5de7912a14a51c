"""`AutoScaling`: topics that find their own size, as one broker sees them: its tick, and the policies (PIP-483)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from engine.aio.tasks import Supervisor
from engine.control.base.config import ControlConfig
from engine.control.base.loads import read_loads
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.topic_scaling import AutoScaleStatus
from engine.control.topic.registry import Controllers
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError
from engine.model.autoscale import AutoScalePolicy, AutoScalePolicyOverride, resolve
from engine.model.names import TopicName, parse_namespace

log = logging.getLogger(__name__)

_AT_ONCE_MAX = 16


class AutoScaling:
    """Loop thread only. Topics that carry no load, and that nobody leads here, cost nothing."""

    def __init__(
        self, controllers: Controllers, resources: ScalableTopicResources, config: ControlConfig, tasks: Supervisor
    ) -> None:
        self._controllers = controllers
        self._resources = resources
        self._config = config
        self._tasks = tasks
        self._loaded: set[TopicName] = set()  # since the last tick

    def start(self) -> None:
        """Begin to tick."""
        self._tasks.spawn(self._tick(), "auto-scale")

    def loaded(self, topic: TopicName) -> None:
        """This broker serves a segment of it that carries load now: somebody must lead it, or it would never scale."""
        self._loaded.add(topic)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.auto_scale_interval)
            for controller in self._controllers.led():
                controller.scaling.look()
            loaded, self._loaded = list(self._loaded), set()
            for first in range(0, len(loaded), _AT_ONCE_MAX):
                await asyncio.gather(*map(self._find_leader, loaded[first : first + _AT_ONCE_MAX]))

    async def _find_leader(self, topic: TopicName) -> None:
        """Lead it if nobody does and it is to scale; the leader resigns when it is at rest."""
        controller = self._controllers.get(topic)
        if controller is not None and controller.leadership.leading:
            return
        try:
            if await self._resources.load_leader(topic) is None and (await self._effective(topic)).enabled:
                (await self._controllers.lead(topic)).scaling.look()
        except (NotOwnerError, NotFoundError, AlreadyClosedError):
            return
        except EngineError as e:
            log.warning("%s has load, and nobody can be found to lead it for now: %s", topic, e)
        except Exception:  # the tick is for all topics
            log.exception("%s has load, and looking for who leads it failed", topic)

    # Policies and what came of them.

    async def status(self, topic: str | TopicName) -> AutoScaleStatus:
        """The effective policy and the last reports of load; from its leader, also the last decision. NotFoundError."""
        name = TopicName.parse(topic)
        policy, loads = await self._effective(name), await read_loads(self._resources.metadata, name)
        controller = self._controllers.get(name)
        if controller is None or not controller.leadership.leading:
            return AutoScaleStatus(policy, loads=loads)
        return replace(controller.scaling.status, policy=policy, loads=loads)

    async def get_policy(self, topic: str | TopicName) -> AutoScalePolicyOverride | None:
        """What the topic itself overrides. Raises NotFoundError."""
        return (await self._load(TopicName.parse(topic))).layout.auto_scale_policy

    async def set_policy(self, topic: str | TopicName, override: AutoScalePolicyOverride | None) -> None:
        """Replace what the topic overrides; None: nothing. It counts at once. Raises NotFoundError, NotOwnerError."""
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.set_auto_scale_policy(override or None)

    async def get_namespace_policy(self, namespace: str) -> AutoScalePolicyOverride | None:
        """What a "tenant/namespace" overrides for its topics."""
        return await self._resources.load_namespace_auto_scale_policy(*parse_namespace(namespace))

    async def set_namespace_policy(self, namespace: str, override: AutoScalePolicyOverride | None) -> None:
        """Replace what it overrides; None: nothing. Its topics follow at their next look."""
        await self._resources.save_namespace_auto_scale_policy(*parse_namespace(namespace), override or None)

    async def _effective(self, topic: TopicName) -> AutoScalePolicy:
        layout = (await self._load(topic)).layout
        namespace = await self._resources.load_namespace_auto_scale_policy(topic.tenant, topic.namespace)
        return resolve(self._config.auto_scale, namespace, layout.auto_scale_policy)

    async def _load(self, topic: TopicName) -> TopicRecord:
        record = await self._resources.load_topic(topic)
        if record is None or record.layout.deleting:
            raise NotFoundError(f"{topic} does not exist")
        return record
