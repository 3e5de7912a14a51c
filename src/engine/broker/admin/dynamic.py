"""Limits that change at run time: kept in the metadata store, watched by every broker, persistent over restarts.

Such a value overrides file, environment and arguments until it is unset (PIP-442 "rollout").
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.aio.tasks import Supervisor
from engine.broker.settings.config import BrokerConfig, setting
from engine.broker.settings.current import CurrentConfig
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, MetadataStore

if TYPE_CHECKING:
    from engine.broker.limits.limits import BrokerLimits

log = logging.getLogger(__name__)

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
    """The limits in the metadata store; what goes by them is loaded with the first one, by `begin`."""

    def __init__(self, metadata: MetadataStore, begin: Callable[[], BrokerLimits]) -> None:
        self._metadata = metadata
        self._begin = begin
        self._limits: BrokerLimits | None = None

    async def start(self) -> Coroutine[Any, Any, None]:
        """Take over those that are stored; what follows their changes. Raises what the metadata store raises."""
        for record in await self._metadata.newest.list(keys.LIMITS, keys.prefix_end(keys.LIMITS)):
            self.note(record.key, record.value)
        watch = partial(self._metadata.watch, keys.LIMITS)
        return follow(self._metadata, watch, self._heard, self._known, what="the limits")

    def note(self, key: str, value: bytes | None) -> None:
        """Take a record over, None where it was deleted."""
        if self._limits is None and value is not None:
            self._limits = self._begin()
        if self._limits is not None:
            self._limits.note(key, value)

    def _heard(self, event: Event) -> None:
        if event.kind is not EventKind.SNAPSHOT_END:
            self.note(event.key, None if event.record is None else event.record.value)

    def _known(self) -> list[str]:
        return [] if self._limits is None else self._limits.keys()


def _dynamic(name: str) -> str:
    """The dynamic setting's snake_case name. Raises InvalidArgumentError."""
    try:
        key, _ = setting(name, 0)
    except InvalidConfigurationError:
        key = name
    if key not in DYNAMIC:
        raise InvalidArgumentError(f"a setting at run time must be one of {', '.join(DYNAMIC)}, got {name!r:.80}")
    return key
