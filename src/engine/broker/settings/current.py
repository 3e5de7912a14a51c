"""The configuration in effect, replaceable at run time."""

from __future__ import annotations

from collections.abc import Callable

from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.shares import share_of


class CurrentConfig:
    """`value` is replaced as a whole; holders of a copied limit subscribe with follow().

    `whole` is what was configured; `value` is the share of it that this process has, one of `processes` of a server.
    """

    def __init__(self, whole: BrokerConfig, processes: int = 1) -> None:
        self._processes = processes
        self._whole = whole
        self._value = share_of(whole, processes)
        self._followers: list[Callable[[BrokerConfig], None]] = []

    @property
    def whole(self) -> BrokerConfig:
        """The configuration of the server."""
        return self._whole

    @property
    def value(self) -> BrokerConfig:
        """The configuration in effect now."""
        return self._value

    def follow(self, changed: Callable[[BrokerConfig], None]) -> None:
        """Call `changed` with each later configuration, in the order of registration."""
        self._followers.append(changed)

    def replace(self, whole: BrokerConfig) -> None:
        """Put another configuration into effect."""
        self._whole, self._value = whole, share_of(whole, self._processes)
        for changed in self._followers:
            changed(self._value)
