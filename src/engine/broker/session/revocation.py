"""What a revoked right ends on a living connection, and the end of a connection whose token has expired.

Each request that attaches something leaves its need under the client's id. When the grants of the connection's role
have changed, each need is checked again, and what may not go on is closed with AuthorizationError. What is being opened
meanwhile is given up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.broker.rights.need import Need
from engine.errors import AuthenticationError, AuthorizationError, TimeoutError
from engine.model.rights import Right

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

_REQUEST = "revocation"
_STALE_MAX = 64  # needs of ids that are attached no more, beside as many as are


class Needs:
    """The needs of what is attached over one connection, by the client's ids."""

    __slots__ = ("_connection", "_needs", "_timer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._needs: dict[int, Need] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, ident: int, need: Need) -> None:
        """Keep the need of what is about to be opened. That of an id in use stays: the request will be refused."""
        if self._connection.is_used(ident):
            return
        self._needs[ident] = need
        if len(self._needs) > 2 * _STALE_MAX + 2 * self._connection.attached:
            self._needs = {k: v for k, v in self._needs.items() if k == ident or self._connection.is_used(k)}

    def check(self) -> None:
        """Close what the principal may not have any more, and the connection where that is not known: it was let in
        as a superuser, and is none any more.
        """
        try:
            self._check()
        except TimeoutError as e:
            self._connection.fail(e)

    def _check(self) -> None:
        connection, rights = self._connection, self._connection.host.rights
        speaker = connection.principal.speaker
        if speaker is not None and not rights.allows(speaker, Need(Right.PROXY)):
            connection.fail(rights.denial(connection.principal, Need(Right.PROXY), _REQUEST, connection.origin))
            return
        for ident, need in list(self._needs.items()):
            if connection.is_used(ident) and not rights.allows(connection.principal, need):
                _end(connection, ident, rights.denial(connection.principal, need, _REQUEST, connection.origin))
            elif need.in_part and (session := connection.topic_lists.get(ident)) is not None:
                session.rights_changed()

    def expire(self, seconds: float) -> None:
        """Close the connection after so many seconds, unless this is called again before."""
        self.close()
        expired = AuthenticationError("the token has expired")
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._connection.fail, expired)

    def close(self) -> None:
        """The connection is closed, or has another token."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _end(connection: Connection, ident: int, error: AuthorizationError) -> None:
    connection.openings.abandon(ident)
    if (producer := connection.producers.get(ident)) is not None:
        producer.close(error)
    if (consumer := connection.consumers.get(ident)) is not None:
        consumer.close(error)
    if (registration := connection.registrations.get(ident)) is not None:
        registration.revoke(error)
    for session in (connection.watches.get(ident), connection.topic_lists.get(ident)):
        if session is not None:
            connection.error(0, error, session_id=ident)
            session.close()
