"""Limits that are changed while brokers run: kept in the metadata store, followed by every broker, and over restarts.

A value that was set so wins over file, environment and arguments, until it is taken back (PIP-442 "rollout").
"""

from __future__ import annotations

import dataclasses
import json
import logging
from functools import partial
from typing import Any

from engine.aio.tasks import Supervisor
from engine.broker.settings.config import BrokerConfig, setting
from engine.broker.settings.current import CurrentConfig
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, MetadataStore

log = logging.getLogger(__name__)

# What needs one of these reads the CurrentConfig at each use, or follows it.
DYNAMIC = (
    "attachments_max",
    "attachments_per_connection_max",
    "connections_max",
    "connections_per_address_max",
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
    """Puts what operators set at run time into effect, on this broker and on the others. Loop thread only."""

    def __init__(self, current: CurrentConfig, metadata: MetadataStore) -> None:
        """The configuration in effect so far becomes the base, which settings made at run time override."""
        self._current = current
        self._metadata = metadata
        self._base = current.value
        self._set: dict[str, Any] = {}  # as far as was heard here
        self._tasks = Supervisor("configuration")

    async def start(self) -> None:
        """What was set before counts from now on; the rest follows. Raises what the metadata store raises."""
        for record in await self._metadata.list(keys.CONFIGURATION, keys.prefix_end(keys.CONFIGURATION)):
            self._note(record.key, record.value)
        self._apply()
        watch = partial(self._metadata.watch, keys.CONFIGURATION)
        following = follow(self._metadata, watch, self._heard, self._known, what="the configuration")
        self._tasks.spawn(following, "watch of the configuration")

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        await self._tasks.close()

    @property
    def base(self) -> BrokerConfig:
        """What the broker was started with, or has read again since."""
        return self._base

    def rebase(self, config: BrokerConfig) -> None:
        """Another base from now on; what was set at run time wins over it as before."""
        self._base = config
        self._apply()

    # -- what operators ask for ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """What may be set."""
        return list(DYNAMIC)

    def values(self) -> dict[str, Any]:
        """What was set."""
        return dict(sorted(self._set.items()))

    def runtime(self) -> dict[str, Any]:
        """What is in effect, of all that may be set."""
        return {name: getattr(self._current.value, name) for name in self.names()}

    async def set(self, name: str, value: Any) -> None:
        """Durably, for all brokers; it counts here when this returns, and for the others a moment later.

        `name` may be the specification's, the value then is in the unit it has there; text may have a unit.
        Raises InvalidArgumentError for what cannot be set at run time, InvalidConfigurationError for a wrong value.
        """
        key, value = self._checked(name, value)
        given = dataclasses.replace(self._base, **{**self._set, key: value})
        found = getattr(given, key)
        await self._metadata.put(keys.setting(key), json.dumps(found).encode())
        self._set[key] = found
        self._apply()

    async def unset(self, name: str) -> None:
        """Go back to what each broker was started with. Idempotent. Raises InvalidArgumentError."""
        key = _dynamic(name)
        await self._metadata.delete(keys.setting(key))
        self._set.pop(key, None)
        self._apply()

    def _checked(self, name: str, value: Any) -> tuple[str, Any]:
        _dynamic(name)
        if value is None or not isinstance(value, str | int | float):
            raise InvalidConfigurationError(f"{name} is {value!r:.80}; a number, or text with a unit, is right")
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
        """Of what this broker does not know, or cannot read, it says so and goes on as before."""
        name = keys.decode(key.removeprefix(keys.CONFIGURATION))
        if value is None:
            self._set.pop(name, None)
            return
        try:
            if name not in DYNAMIC:
                raise InvalidConfigurationError("this broker does not know it, or not as one that changes")
            found = json.loads(value)
            dataclasses.replace(self._base, **{name: found})
        except (ValueError, TypeError) as e:
            log.warning("the setting %s in the metadata store is ignored: %s", name, e)
            return
        self._set[name] = found

    def _apply(self) -> None:
        """Make it count, and say what has changed."""
        before = self._current.value
        try:
            now = dataclasses.replace(self._base, **self._set)
        except InvalidConfigurationError as e:
            log.warning("the settings in the metadata store are ignored, since they do not fit together: %s", e)
            return
        self._current.replace(now)
        for name in DYNAMIC:
            value = getattr(now, name)
            if value != getattr(before, name):
                log.info("%s is %r from now on", name, value, extra={"setting": name, "value": value})


def _dynamic(name: str) -> str:
    """Our name of what may be set at run time. Raises InvalidArgumentError."""
    try:
        key, _ = setting(name, 0)
    except InvalidConfigurationError:
        key = name
    if key not in DYNAMIC:
        raise InvalidArgumentError(f"{name!r:.80} cannot be set at run time; {', '.join(DYNAMIC)} can")
    return key
