"""What changes at run time: kept in the metadata store, watched by brokers, persistent over restarts.

A setting overrides file, environment and arguments until it is unset (PIP-442 "rollout"), at every broker. Limits of
tenants and roles are followed by the brokers where something is of them.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.aio.tasks import Supervisor
from engine.broker.settings.config import BrokerConfig, setting
from engine.broker.settings.current import CurrentConfig
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    InvalidArgumentError,
    InvalidConfigurationError,
    TimeoutError,
)
from engine.metadata import keys
from engine.metadata.following import Choice, follow
from engine.metadata.store import Event, EventKind, MetadataStore, Watch
from engine.model.names import EACH_ROLE, ROLE

if TYPE_CHECKING:
    from engine.broker.limits.limits import BrokerLimits

log = logging.getLogger(__name__)

CLUSTER: Final = "*"  # as of model.rights, which most engines do not load
TOLD_S_MAX = 20.0  # until the store has told the limits of a tenant or role
ASKED_AT_ONCE = 32  # tenants and roles: so twice as many watches begin at a time, each with a read
IDLE_MAX = 256  # tenants and roles whose limits are followed although nothing here is of them
_LOOK_EACH = 64  # new ones, when more idle ones than that are looked for; or where more are followed
_LOOK_PART = 16  # of them: the part that must be new, so that a new one costs the same however many there are

# Users of one of these read the CurrentConfig at each use, or follow it.
DYNAMIC = (
    "attachments_max",
    "attachments_per_connection_max",
    "balance_cooldown",
    "balance_enabled",
    "balance_guard",
    "balance_interval",
    "balance_moves_max",
    "connections_max",
    "connections_per_address_max",
    "drain_timeout",
    "lookups_max",
    "publish_bytes_max",
    "read_cache_max",
    "reads_in_flight_max",
    "receive_buffers_max",
    "topic_list_direct_max",
    "topic_list_direct_queue_max",
    "topic_list_direct_timeout",
    "topic_list_heap_max",
    "topic_list_heap_queue_max",
    "topic_list_heap_timeout",
    "topic_loads_max",
)


class DynamicConfig:
    """Applies settings made at run time, on this broker and on the others."""

    def __init__(self, current: CurrentConfig, metadata: MetadataStore) -> None:
        """The configuration in effect so far becomes the base, which settings made at run time override."""
        self._current = current
        self._metadata = metadata
        self._base = current.whole
        self._set: dict[str, Any] = {}  # as watched here
        self._tasks = Supervisor("configuration")

    async def start(self) -> None:
        """Apply the stored settings and watch for changes. Raises what the metadata store raises."""
        for record in await self._metadata.newest.list(keys.CONFIGURATION, keys.prefix_end(keys.CONFIGURATION)):
            self._note(record.key, record.value)
        self._apply()
        watch = partial(self._metadata.watch, keys.CONFIGURATION)
        following = follow(self._metadata, watch, self._heard, self._known, what="the configuration")
        self._tasks.spawn(following, "watch of the configuration")

    async def close(self) -> None:
        await self._tasks.close()

    @property
    def base(self) -> BrokerConfig:
        """The configuration as started, or reloaded since."""
        return self._base

    def rebase(self, config: BrokerConfig) -> None:
        """Replace the base; settings made at run time still override it."""
        self._base = config
        self._apply()

    # -- operations ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(DYNAMIC)

    def values(self) -> dict[str, Any]:
        return dict(sorted(self._set.items()))

    def runtime(self) -> dict[str, Any]:
        """The values in effect of all settings that may be set; those of a whole server of several processes."""
        return {name: getattr(self._current.whole, name) for name in self.names()}

    async def set(self, name: str, value: Any) -> None:
        """Set a value durably, for all brokers; in effect here on return, on the others after their watch fires.

        `name` may be the specification's; the value then is in the specification's unit. Text may have a unit.
        Raises InvalidArgumentError for a setting that is not dynamic, InvalidConfigurationError for an invalid value.
        """
        key, value = self._checked(name, value)
        given = dataclasses.replace(self._base, **{**self._set, key: value})
        found = getattr(given, key)
        await self._metadata.put(keys.setting(key), json.dumps(found).encode())
        self._set[key] = found
        self._apply()

    async def unset(self, name: str) -> None:
        """Return to each broker's own configuration. Idempotent. Raises InvalidArgumentError."""
        key = _dynamic(name)
        await self._metadata.delete(keys.setting(key))
        self._set.pop(key, None)
        self._apply()

    def _checked(self, name: str, value: Any) -> tuple[str, Any]:
        _dynamic(name)
        if value is None or not isinstance(value, str | int | float):
            raise InvalidConfigurationError(f"{name} must be a number, or text with a unit, got {value!r:.80}")
        return setting(name, value)

    # -- following -------------------------------------------------------------------------------------------------

    def _known(self) -> list[str]:
        return [keys.setting(name) for name in self._set]

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            return
        self._note(event.key, None if event.record is None else event.record.value)
        self._apply()

    def _note(self, key: str, value: bytes | None) -> None:
        """Take over a setting; an unknown or invalid one is logged and ignored."""
        name = keys.decode(key.removeprefix(keys.CONFIGURATION))
        if value is None:
            self._set.pop(name, None)
            return
        try:
            if name not in DYNAMIC:
                raise InvalidConfigurationError("unknown to this broker, or not dynamic")
            found = json.loads(value)
            dataclasses.replace(self._base, **{name: found})
        except (ValueError, TypeError) as e:
            log.warning("the setting %s in the metadata store is ignored: %s", name, e)
            return
        self._set[name] = found

    def _apply(self) -> None:
        """Put the settings into effect and log the changes."""
        before = self._current.whole
        try:
            now = dataclasses.replace(self._base, **self._set)
        except InvalidConfigurationError as e:
            log.warning("the settings in the metadata store are ignored, they conflict: %s", e)
            return
        self._current.replace(now)
        for name in DYNAMIC:
            value = getattr(now, name)
            if value != getattr(before, name):
                log.info("%s is %r from now on", name, value, extra={"setting": name, "value": value})


class FollowedLimits:
    """The limits in the metadata store: those of the cluster, and of each tenant and role that something here is of.

    A *group* is "*", a tenant with all that lies below it, or "role:NAME"; with a role "role:*" is followed. Whatever
    brings something of a group here awaits ready() before: so that what is here is checked at once, and never against
    limits that are not known. `here` tells which groups something is of; others stay followed, IDLE_MAX of them, and
    those go first that were asked for the longest ago.

    What goes by limits is loaded with the first one, by `begin`. Loop thread only; watches end with `tasks`.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        begin: Callable[[], BrokerLimits],
        here: Callable[[], Collection[str]],
        tasks: Supervisor,
    ) -> None:
        self.told: dict[str, None] = {}  # the groups whose limits are known, in the order in which they were asked for
        self._metadata = metadata
        self._begin = begin
        self._here = here
        self._tasks = tasks
        self._limits: BrokerLimits | None = None
        self._asking: dict[str, asyncio.Future[None]] = {}  # those that are not ready yet
        self._waited: dict[str, None] = {}  # those of them that have not begun, in order: something waits for them
        self._hinted: dict[str, None] = {}  # likewise: nothing does
        self._at_work = 0  # those that have begun
        self._keys: dict[str, set[str]] = {}  # of the records, by the part of a group
        self._parts = Choice(metadata, self._watch, self._heard, self._known, tasks, "the limits {}".format)
        self._new = 0  # groups, since idle ones were looked for

    async def ready(self, group: str, within_s: float = TOLD_S_MAX) -> BrokerLimits | None:
        """Wait until the limits of a group are known, with what other brokers show of it; None: none are known here.

        Raises TimeoutError (the store does not tell them), AlreadyClosedError.
        """
        if not self.is_ready(group):
            await self._wait(group, within_s)
        return self._limits

    def is_ready(self, group: str) -> bool:
        """Whether ready() need not be awaited. It is asked for then, so that it is the last one to be dropped."""
        if group not in self.told or group in self._asking:
            return False
        self.told[group] = self.told.pop(group)
        return True

    def follow(self, group: str) -> None:
        """Begin to, where it is not followed, after those that something waits for."""
        if not self.is_ready(group) and group not in self._asking:
            with contextlib.suppress(AlreadyClosedError):
                self._ask(group, self._hinted)

    def note(self, key: str, value: bytes | None) -> None:
        """Take a record over, None where it was deleted; of a group that is followed."""
        part = keys.limit_part(key)
        if part not in self._parts:
            return
        known = self._keys.setdefault(part, set())
        if value is None:
            known.discard(key)
        else:
            known.add(key)
            if self._limits is None:
                self._limits = self._begin()
        if self._limits is not None:
            self._limits.note(key, value)

    def _heard(self, event: Event) -> None:
        if event.kind is not EventKind.SNAPSHOT_END:
            self.note(event.key, None if event.record is None else event.record.value)

    def _watch(self, part: str) -> Watch:
        return self._metadata.watch(part) if part.endswith(keys.BELOW) else self._metadata.watch_key(part)

    def _known(self, part: str) -> Collection[str]:
        return self._keys.get(part, ())

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def _wait(self, group: str, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not self.is_ready(group):
                    asked = self._asking.get(group) or self._ask(group, self._waited)
                    if group in self._hinted:
                        del self._hinted[group]
                        self._waited[group] = None
                    await asyncio.wait([asked])
                    if asked.cancelled():
                        raise _closing()
                    asked.result()
        except builtins.TimeoutError as e:
            if isinstance(e, EngineError):
                raise
            raise TimeoutError(
                f"the metadata store did not tell the limits of {group} within {within_s:.3g} s; try again"
            ) from None

    def _ask(self, group: str, queue: dict[str, None]) -> asyncio.Future[None]:
        asked = self._asking[group] = asyncio.get_running_loop().create_future()
        if group in (CLUSTER, EACH_ROLE):
            self._begin_one(group)  # others wait for it, while they are at work
        else:
            queue[group] = None
            self._begin_some()
        if asked.cancelled():
            raise _closing()
        return asked

    def _begin_some(self) -> None:
        """Of ASKED_AT_ONCE: however many are asked for, so many watches begin at a time."""
        while self._at_work < ASKED_AT_ONCE and (queue := self._waited or self._hinted):
            group = next(iter(queue))
            del queue[group]
            self._begin_one(group)

    def _begin_one(self, group: str) -> None:
        task = self._tasks.spawn(self._tell(group), f"limits of {group}")
        if task is None:
            self._asking.pop(group).cancel()
            return
        self._at_work += group not in (CLUSTER, EACH_ROLE)
        task.add_done_callback(partial(self._has_told, group))

    def _has_told(self, group: str, task: asyncio.Task[None]) -> None:
        self._at_work -= group not in (CLUSTER, EACH_ROLE)
        asked = self._asking.pop(group)
        if task.cancelled():
            asked.cancel()
        elif (error := task.exception()) is not None:
            asked.set_exception(error)
            asked.exception()  # it is logged: nothing has to wait for it
        else:
            asked.set_result(None)
        self._begin_some()

    async def _tell(self, group: str) -> None:
        if group.startswith(ROLE) and group != EACH_ROLE:
            await self._wait(EACH_ROLE, TOLD_S_MAX)
        if group not in self.told:
            parts = keys.limit_parts(group)
            for part in parts:
                if part not in self._parts:
                    self._parts.add(part)
            for part in parts:
                await self._parts.shown(part)
            if self._limits is not None:
                self._limits.settle()  # nothing is here of it yet that goes by its records
            self.told[group] = None
            self._new += 1
            if self._limits is not None:
                self._limits.known(group)
        if self._limits is not None:
            self._limits.settle()
            await self._limits.meet_others(group)
        if self._new >= max(_LOOK_EACH, len(self.told) // _LOOK_PART):
            self._new = 0
            self._drop_idle()

    def _drop_idle(self) -> None:
        used = {CLUSTER, EACH_ROLE, *self._asking, *self._here()}
        idle = [group for group in self.told if group not in used]
        dropped = idle[: max(len(idle) - IDLE_MAX, 0)]
        for group in dropped:
            self._drop(group)
        if dropped and self._limits is not None:
            self._limits.forget(dropped)

    def _drop(self, group: str) -> None:
        del self.told[group]
        for part in keys.limit_parts(group):
            self._parts.drop(part)
            for key in self._keys.pop(part, ()):
                if self._limits is not None:
                    self._limits.note(key, None)


def _closing() -> AlreadyClosedError:
    return AlreadyClosedError("the broker is closing")


def _dynamic(name: str) -> str:
    """The dynamic setting's snake_case name. Raises InvalidArgumentError."""
    try:
        key, _ = setting(name, 0)
    except InvalidConfigurationError:
        key = name
    if key not in DYNAMIC:
        raise InvalidArgumentError(f"a setting at run time must be one of {', '.join(DYNAMIC)}, got {name!r:.80}")
    return key
