"""`Attachments`: limits on attached producers and consumers, per connection and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from engine import checks
from engine.aio.semaphore import PoolStatistics
from engine.errors import TooManyRequestsError

if TYPE_CHECKING:
    from engine.broker.settings.config import BrokerConfig

T = TypeVar("T")


class Attachments:
    """One per broker. Loop thread only.

    Invariant: `used` is the sum of the lengths of all `Attached`. Checked by remove(), which sees it fall below 0.
    """

    __slots__ = ("limit", "per_connection", "refusals", "used")

    def __init__(self, config: BrokerConfig) -> None:
        self.used = 0
        self.refusals = 0
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply new limits; what is attached stays attached."""
        self.limit = config.attachments_max
        self.per_connection = config.attachments_per_connection_max

    def check(self, own: int) -> None:
        """Raise TooManyRequestsError unless one more may be attached over a connection that has `own`."""
        if own >= self.per_connection:
            self.refusals += 1
            raise TooManyRequestsError(f"{own} producers and consumers are attached over this connection; close some")
        if self.used >= self.limit:
            self.refusals += 1
            raise TooManyRequestsError(f"attachment limit reached ({self.limit} producers and consumers)")

    def remove(self, count: int) -> None:
        """So many are closed."""
        self.used -= count
        checks.check(self.used >= 0, "no more producers and consumers are closed than were attached")

    def statistics(self) -> PoolStatistics:
        return PoolStatistics("attachments", "attachments", self.used, self.limit, refusals=self.refusals)


class Attached(dict[int, T]):
    """The producers, or the consumers, of one connection by the client's id. Only these methods change it."""

    __slots__ = ("_all",)

    def __init__(self, everything: Attachments) -> None:
        super().__init__()
        self._all = everything

    def __setitem__(self, ident: int, one: T) -> None:
        if ident not in self:
            self._all.used += 1
        super().__setitem__(ident, one)

    def __delitem__(self, ident: int) -> None:
        super().__delitem__(ident)
        self._all.remove(1)

    def clear(self) -> None:
        self._all.remove(len(self))
        super().clear()
