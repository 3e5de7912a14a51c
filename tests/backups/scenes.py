"""What the tests of backups begin with: an engine with some history, and what is read from a restored one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import engine
from engine.model.admin_backup_operations import BEGIN_BACKUP, END_BACKUP
from engine.model.admin_requests import Operation

CONFIG = {"scalable_topic_auto_scale_enabled": False, "consumer_grace_period": 0.2}
WAIT_S_MAX = 30.0  # only a failure waits for so long


def opened(data: Path, **config: Any) -> engine.Engine:
    """The engine of a test."""
    return engine.open(data, config={**CONFIG, **config})


def send(e: engine.Client, topic: str, label: str, count: int, size: int = 100) -> list[bytes]:
    """So many messages, each acknowledged; their values."""
    values = [f"{label} {n} ".encode().ljust(size, b".") for n in range(count)]
    with e.producer(topic) as p:
        for n, value in enumerate(values):
            p.send_nowait(value, key=f"key-{n % 7}")
        p.flush()
    return values


def everything(e: engine.Client, topic: str) -> Counter[bytes]:
    """All messages of a topic that readers see, each with its count."""
    return Counter(e.table(topic, columns=["value"])["value"].to_pylist())


def unacknowledged(e: engine.Client, topic: str, subscription: str, count: int) -> Counter[bytes]:
    """What a queue subscription has to deliver; `count` of them are there."""
    found: Counter[bytes] = Counter()
    with e.queue_consumer(topic, subscription) as c:
        for _ in range(count):
            message = c.receive(timeout=WAIT_S_MAX)
            assert message is not None, f"{subscription} delivers {found.total()} of {count}"
            found[bytes(message.value)] += 1
            c.acknowledge(message)
        assert c.receive(timeout=0.2) is None
    return found


class Between:
    """A client whose broker goes on between the moment of a backup and the copying: `act` runs there."""

    def __init__(self, e: engine.Engine, act: Callable[[], object]) -> None:
        self._act = act
        self._admin = e._client.admin
        self._portal = e._portal
        self._client = self
        self.admin = self
        self.ended: list[bool] = []

    async def _call(self, operation: Operation[Any], arguments: Mapping[str, Any]) -> Any:
        found = await self._admin._call(operation, arguments)
        if operation is BEGIN_BACKUP:
            await asyncio.to_thread(self._act)
        if operation is END_BACKUP:
            self.ended.append(arguments["done"])
        return found
