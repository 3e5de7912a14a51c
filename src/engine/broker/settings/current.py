"""The configuration in effect, replaceable at run time."""

from __future__ import annotations

from collections.abc import Callable

from engine.broker.settings.config import BrokerConfig


class CurrentConfig:
    """`value` is replaced as a whole; holders of a copied limit subscribe with follow()."""

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
