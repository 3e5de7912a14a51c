"""One client for each process and broker: tasks of a Python worker that is used again share it."""

from __future__ import annotations

import threading

import engine
from pyspark_engine.options import Connection

_clients: dict[Connection, engine.Client] = {}
_lock = threading.Lock()


def connect(connection: Connection) -> engine.Client:
    """A client of one's own, to be closed. Nothing is connected before it is needed."""
    return engine.Client(
        connection.url, token=connection.token, tls=connection.tls_context(), objects=connection.objects
    )


async def connect_async(connection: Connection) -> engine.AsyncClient:
    """The same for the event loop that runs."""
    return engine.AsyncClient(
        connection.url, token=connection.token, tls=connection.tls_context(), objects=connection.objects
    )


def shared_client(connection: Connection) -> engine.Client:
    """This process's client; it lives as long as the process."""
    with _lock:
        client = _clients.get(connection)
        if client is None:
            client = _clients[connection] = connect(connection)
        return client
