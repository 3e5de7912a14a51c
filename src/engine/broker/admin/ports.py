"""What the HTTP server of the admin API reads of a broker."""

from __future__ import annotations

from typing import Protocol

from engine.broker.admin.service import AdminService
from engine.broker.metrics.ports import Observed
from engine.broker.rights.identities import Identities
from engine.broker.rights.rights import Rights


class Served(Observed, Protocol):
    """A broker with an admin API. It answers health and metrics before it has started, and while it closes."""

    @property
    def refusing(self) -> bool:
        """Whether operations are refused: not started yet, or closing."""

    @property
    def identities(self) -> Identities:
        """Makes the principals of requests."""

    @property
    def rights(self) -> Rights:
        """What principals may do."""

    @property
    def admin(self) -> AdminService:
        """Executes the operations. There once it has `started`."""
