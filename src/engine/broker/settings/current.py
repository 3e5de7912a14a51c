"""The configuration in effect, which operators may replace while the broker runs."""

from __future__ import annotations

from collections.abc import Callable

from engine.broker.settings.config import BrokerConfig


class CurrentConfig:
    """`value` is replaced whole; what keeps a copy of a limit follows. Loop thread only."""

    def __init__(self, value: BrokerConfig) -> None:
        self._value = value
        self._followers: list[Callable[[BrokerConfig], None]] = []

    @property
    def value(self) -> BrokerConfig:
        """The configuration in effect now."""
        return self._value

    def follow(self, changed: Callable[[BrokerConfig], None]) -> None:
        """Call `changed` with each later configuration, in the order of registration."""
        self._followers.append(changed)

    def replace(self, value: BrokerConfig) -> None:
        """Put another configuration into effect."""
        self._value = value
        for changed in self._followers:
            changed(value)
