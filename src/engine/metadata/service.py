"""`MetadataService`: serves a metadata store to other processes, over any streams of frames.

    frame of requests ──> one turn: writes are handed to the store in order, reads are answered
                              │
                              ▼ the store's commit, which the writes of the turn share
    frame of answers  <── at the end of a turn: answers, and events of watches

The sessions of clients have deadlines here. One is counted from the arrival of a refresh, and lives on when its
client's connection is lost. The holder counts from before the refresh was sent, and so stops relying on it first.

A client that connects again is welcomed when the writes of its earlier connection have ended: what it reads then shows
whether they took place. Memory is bounded for slow clients: events that a client does not take collapse in the store's
own watches, per key, and its requests are not read while its answers wait.
"""

from __future__ import annotations

import asyncio

from engine.aio.tasks import Supervisor
from engine.metadata.served_connection import ServedConnection
from engine.metadata.served_sessions import SESSION_S_MAX, ServedSessions
from engine.metadata.store import MetadataStore
from engine.wire.stream import FrameHandler, FrameStream


class MetadataService:
    """Serves one store. Loop thread only. Pass `accept` to what listens; call start() before, and close() behind it."""

    def __init__(
        self, store: MetadataStore, *, build: str = "", pid: int = 0, session_timeout_max: float = SESSION_S_MAX
    ) -> None:
        """`build`, `pid`: of this process, for clients' messages. `session_timeout_max`: seconds; larger ones are
        refused, and sessions of an earlier service's clients live on for so long.
        """
        self.store = store
        self.build = build
        self.pid = pid
        self.sessions = ServedSessions(store, session_timeout_max)
        self.tasks = Supervisor("metadata service")
        self.closed = False
        self._connections: dict[ServedConnection, None] = {}
        self._clients: dict[int, ServedConnection] = {}

    def start(self) -> None:
        """Take the sessions over that an earlier service of this store has left."""
        self.sessions.adopt()

    def accept(self, stream: FrameStream) -> FrameHandler:
        """A new connection."""
        connection = ServedConnection(self, stream)
        if self.closed:
            stream.abort()
        else:
            self._connections[connection] = None
        return connection

    @property
    def connections(self) -> int:
        """The connections that are open."""
        return len(self._connections)

    async def claim(self, client: int, connection: ServedConnection) -> None:
        """Make this the connection of a client, once nothing of an earlier one can take place any more."""
        connection.before = self._clients.get(client)
        self._clients[client] = connection
        if connection.before is not None:
            await connection.before.retire()
            connection.before = None

    def lost(self, connection: ServedConnection) -> None:
        """A connection has ended; its writes may still be under way."""
        self._connections.pop(connection, None)

    def forget(self, client: int, connection: ServedConnection) -> None:
        """Nothing of a lost connection is under way any more."""
        if self._clients.get(client) is connection:
            del self._clients[client]

    async def close(self) -> None:
        """End all connections, once the writes that have arrived are done. Sessions are left as they are. Idempotent.

        The store remains open; it is closed after this.
        """
        self.closed = True
        await asyncio.gather(*(connection.retire() for connection in list(self._connections)))
        self.sessions.leave()
        await self.tasks.close()
