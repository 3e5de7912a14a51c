"""Limits of a proxy that change while it runs: by its configuration read again, or by requests at its HTTP port.

A proxy keeps no state, so a limit that was set by a request holds until it is unset or the proxy ends; until then it
overrides the configuration, also one that is read again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.model.units import byte_count, seconds
from engine.proxy.config import ProxyConfig, setting

log = logging.getLogger(__name__)

LIMITS = (
    "connections_max",
    "topic_list_direct_max",
    "topic_list_direct_queue_max",
    "topic_list_direct_timeout",
    "topic_list_heap_max",
    "topic_list_heap_queue_max",
    "topic_list_heap_timeout",
)
_TEXTS: dict[str, Callable[[str], float | None]] = {
    "topic_list_direct_max": byte_count,
    "topic_list_direct_timeout": seconds,
    "topic_list_heap_max": byte_count,
    "topic_list_heap_timeout": seconds,
}


class RunTimeLimits:
    """The configuration in effect: the base with the limits set at run time. Loop thread only."""

    def __init__(self, base: ProxyConfig, apply: Callable[[ProxyConfig], None]) -> None:
        """`apply` puts a configuration into effect."""
        self._base = base
        self._apply = apply
        self._set: dict[str, Any] = {}

    @property
    def base(self) -> ProxyConfig:
        """The configuration as started, or reloaded since."""
        return self._base

    def rebase(self, config: ProxyConfig) -> None:
        """Replace the base; limits set at run time still override it."""
        self._base = config
        self._apply(dataclasses.replace(config, **self._set))

    def values(self) -> dict[str, Any]:
        """What was set at run time."""
        return dict(sorted(self._set.items()))

    def runtime(self) -> dict[str, Any]:
        """The values in effect of all limits."""
        now = dataclasses.replace(self._base, **self._set)
        return {name: getattr(now, name) for name in LIMITS}

    def set(self, name: str, text: str) -> None:
        """Set a limit at once. `name` may be the specification's, the number then is in its unit; other text may have
        a unit, as 512MB or 10s.

        Raises InvalidArgumentError for what is no limit, InvalidConfigurationError for an invalid value.
        """
        key, factor = _limit(name)
        given = {**self._set, key: _number(name, key, factor, text)}
        now = dataclasses.replace(self._base, **given)
        self._set = given
        self._apply(now)
        log.info("%s is %r from now on", key, given[key], extra={"setting": key, "value": given[key]})

    def unset(self, name: str) -> None:
        """Return to the configuration. Idempotent. Raises InvalidArgumentError."""
        key, _ = _limit(name)
        if self._set.pop(key, None) is not None:
            self.rebase(self._base)
            log.info("%s is as configured from now on", key, extra={"setting": key})


def _limit(name: str) -> tuple[str, float | None]:
    """The limit's name in snake case, and the factor of the specification's unit."""
    key, factor = setting(name)
    if key not in LIMITS:
        raise InvalidArgumentError(f"a limit of a proxy must be one of {', '.join(LIMITS)}, got {name!r:.80}")
    return key, factor


def _number(name: str, key: str, factor: float | None, text: str) -> int | float:
    found: float | None = None
    if factor is None and key in _TEXTS:
        found = _TEXTS[key](text)
    elif text.isascii() and text.isdecimal():
        found = int(text) * (1 if factor is None else factor)
    if found is None:
        unit = ", which may have a unit" if factor is None and key in _TEXTS else ""
        raise InvalidConfigurationError(f"{name} must be a number{unit}, got {text!r:.80}")
    return found
