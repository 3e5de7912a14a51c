"""`Attachments`: how many producers and consumers there are. Each costs memory for as long as its client likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from engine import checks
from engine.aio.semaphore import PoolStatistics
from engine.errors import TooManyRequestsError

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection
    from engine.broker.settings.config import BrokerConfig

T = TypeVar("T")


class Attachments:
    """Of one broker. Loop thread only.

    Invariant: `used` is the sum of the lengths of all `Attached`. Checked by let_go() as far as can be seen there.
    """

    __slots__ = ("limit", "per_connection", "refusals", "used")

    def __init__(self, config: BrokerConfig) -> None:
        self.used = 0
        self.refusals = 0
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Take other limits from now on; who is attached stays."""
        self.limit = config.attachments_max
        self.per_connection = config.attachments_per_connection_max

    def check(self, connection: Connection) -> None:
        """Raises TooManyRequestsError when one more over this connection would be too many."""
        own = len(connection.producers) + len(connection.consumers)
        if own >= self.per_connection:
            self.refusals += 1
            raise TooManyRequestsError(f"{own} producers and consumers are attached over this connection; close some")
        if self.used >= self.limit:
            self.refusals += 1
            raise TooManyRequestsError(f"{self.used} producers and consumers are attached, as many as there may be")

    def let_go(self, count: int) -> None:
        """So many are closed."""
        self.used -= count
        checks.check(self.used >= 0, "no more producers and consumers are closed than were attached")

    def statistics(self) -> PoolStatistics:
        """How it stands."""
        return PoolStatistics("attachments", "attachments", self.used, self.limit, refusals=self.refusals)


class Attached(dict[int, T]):
    """What of a kind lives on one connection, by the client's id. Changed in no other ways than these."""

    __slots__ = ("_all",)

    def __init__(self, everything: Attachments) -> None:
        super().__init__()
        self._all = everything

    def __setitem__(self, ident: int, one: T) -> None:
        """It is attached."""
        self._all.used += ident not in self
        super().__setitem__(ident, one)

    def __delitem__(self, ident: int) -> None:
        """It is closed."""
        super().__delitem__(ident)
        self._all.let_go(1)

    def clear(self) -> None:
        """The connection is gone."""
        self._all.let_go(len(self))
        super().clear()
