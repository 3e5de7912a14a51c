"""Redis streams: XADD in pipelines of 500; XREADGROUP and XACK in one trip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import RedisError

from engine.cli.peers.peer import Rows

PIPELINE = 500
READ = 1_000
TIMEOUT_S = 30.0


@contextmanager
def _failing() -> Iterator[None]:
    """RedisError is no OSError."""
    try:
        yield
    except RedisError as e:
        raise OSError(f"Redis: {e}") from e


class RedisStream:
    """A stream and a group, made with it."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        self._client: Any = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        with _failing():
            self._client.xgroup_create(topic, "engine", id="0", mkstream=True)

    def publish(self, rows: Rows) -> None:
        with _failing():
            for start in range(0, len(rows), PIPELINE):
                pipeline = self._client.pipeline(transaction=False)
                for key, value in rows[start : start + PIPELINE]:
                    pipeline.execute_command("XADD", self._topic, "*", b"k", key, b"v", value)
                pipeline.execute()

    def publish_each(self, rows: Rows) -> None:
        with _failing():
            for key, value in rows:
                self._client.execute_command("XADD", self._topic, "*", b"k", key, b"v", value)

    def consume(self, count: int) -> int:
        size = got = 0
        wanted = {self._topic: ">"}
        with _failing():
            reply = self._client.xreadgroup("engine", "c", wanted, count=READ)
            while got < count:
                rows = _rows(reply)
                if not rows:
                    raise OSError(f"Redis gave {got} of {count} messages")
                got += len(rows)
                size += sum(len(fields[b"v"]) for _, fields in rows)
                pipeline = self._client.pipeline(transaction=False)  # acknowledge and read on in one trip
                pipeline.xack(self._topic, "engine", *(ident for ident, _ in rows))
                pipeline.xreadgroup("engine", "c", wanted, count=READ)
                reply = pipeline.execute()[1]
        return size

    def close(self) -> None:
        with _failing():
            self._client.delete(self._topic)
            self._client.close()


def _rows(reply: Any) -> Any:
    """(id, fields) of each message, by either version of the protocol."""
    if not reply:
        return []
    return next(iter(reply.values()))[0] if isinstance(reply, dict) else reply[0][1]


connected = RedisStream
