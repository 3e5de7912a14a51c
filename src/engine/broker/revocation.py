"""`Revocation`: grants and identities, kept fresh while a broker with roles runs.

A right that is taken away ends the producers and consumers that need it; an identity that is withdrawn ends its
connections.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.broker.rights.changes import Changes
from engine.broker.rights.grants import Grants
from engine.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.broker.rights.identities import Identities
    from engine.broker.session.connection import Connection
    from engine.clock import Clock
    from engine.metadata.store import MetadataStore

_IDENTITIES_S = 0.5  # between two looks at the files of tokens and keys


class Revocation:
    """Loop thread only. `connections`: those that are open, at any time."""

    def __init__(
        self, metadata: MetadataStore, identities: Identities, connections: Collection[Connection], clock: Clock
    ) -> None:
        self.changes = Changes(clock)
        self.grants = Grants(metadata, self._changed, self.changes.began, self.changes.ended)
        self._identities = identities
        self._connections = connections
        self._followed = identities.generation  # the last one that connections were checked against

    def note(self, key: str, value: bytes | None) -> None:
        """A record of grants that this broker has written itself: it counts at once, where its role is followed."""
        if (role := self.grants.note(key, value)) is not None:
            self._changed(role)

    def _changed(self, role: str) -> None:
        self.changes.note(role)
        for connection in list(self._connections):
            if connection.needs is not None and connection.principal.is_about(role):
                connection.needs.check()

    def configured(self) -> None:
        """The configuration has changed: superusers may be others."""
        self.changes.note()
        for connection in list(self._connections):
            if connection.needs is not None:
                connection.needs.check()

    async def follow_identities(self) -> None:
        """Close the connections whose proof of identity was withdrawn."""
        while True:
            await asyncio.sleep(_IDENTITIES_S)
            self._identities.refresh()
            if self._identities.generation != self._followed:  # by this refresh, or one of a request in between
                self._followed = self._identities.generation
                for connection in list(self._connections):
                    if not self._identities.stands(connection.principal):
                        connection.fail(AuthenticationError("the token was revoked"))
