"""Limits of a server of several processes: rates, topics and storage are of the server, not of each process.

One test, as starting such a server takes seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import engine
from engine.broker.rights.token_file import line_of
from engine.client.client import AsyncClient
from engine.errors import LimitExceededError
from tests.processes.conftest import PROCESSES, Start

pytestmark = pytest.mark.timeout(300)

WAIT_S_MAX = 60.0
RATE = 100_000  # bytes a second, of the tenant
BLOB = bytes(5_000)
NARROW, WIDE = "topic://public/default/narrow", "topic://public/default/wide"


class Writers:
    """As many as are needed to use up any share of the rate, until stop()."""

    @classmethod
    async def of(cls, client: AsyncClient, topic: str) -> Writers:
        return cls(await client.producer(topic, compression="none"))

    def __init__(self, producer: engine.AsyncProducer) -> None:
        self._producer = producer
        self._tasks = [asyncio.ensure_future(self._write(f"key-{number}")) for number in range(24)]

    async def _write(self, key: str) -> None:
        while True:
            await self._producer.send(BLOB, key=key)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
        await self._producer.close()


async def of_tenant(client: AsyncClient, name: str) -> dict[str, float]:
    """A metric of the tenant's rate, by process."""
    return {
        sample.labels["process"]: sample.value
        for family in text_string_to_metric_families(await client.admin.get_metrics())
        for sample in family.samples
        if sample.name == name and sample.labels.get("scope") == "total public"
    }


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)


async def a_rate_is_shared_by_the_processes_as_they_need_it(client: AsyncClient) -> None:
    await client.admin.create_topic(NARROW, segments=1)
    await client.admin.set_limits("public", {"total_publish_bytes_per_s": RATE})

    async def rates() -> dict[str, float]:
        return await of_tenant(client, "engine_limit_rate")

    narrow = await Writers.of(client, NARROW)  # at one process, which has all of the rate
    await until(lambda: _is(rates, lambda found: list(found.values()) == [RATE]), "its process has no rate")
    (busy,) = await rates()
    wide = await Writers.of(client, WIDE)
    await until(lambda: _is(rates, lambda found: set(found.values()) == {RATE / 2} and len(found) == 2), "halves")

    # Together they let through what one of them would alone.
    granted = lambda: of_tenant(client, "engine_limit_granted_bytes_total")  # noqa: E731
    began, before = time.monotonic(), sum((await granted()).values())
    await until(lambda: _is(granted, lambda found: sum(found.values()) >= before + 3 * RATE), "nothing is sent")
    # Not counted: what unused buckets let through at once, a quarter of a second's worth, and a portion of each.
    assert time.monotonic() - began > 3 - 0.75, "together they are faster than the limit"

    await wide.stop()
    await until(lambda: _is(rates, lambda found: found[busy] > 0.9 * RATE), "what is not used stays unused")
    await narrow.stop()
    await client.admin.remove_limits("public")


async def _is(found: Callable[[], Awaitable[dict[str, float]]], condition: Callable[[dict[str, float]], bool]) -> bool:
    return condition(await found())


async def topics_and_storage_are_counted_over_all_processes(client: AsyncClient, url: str) -> None:
    await client.admin.set_limits("public", {"total_topics": 5})
    for number in range(3):
        await client.admin.create_topic(f"topic-{number}")
    for _ in range(4):  # whichever process it is that is asked
        async with AsyncClient(url, token="token-of-root") as another:
            with pytest.raises(LimitExceededError, match="total_topics of public must be at most 5, got topic 6"):
                await another.admin.create_topic("one-more")
    await client.admin.set_limits("public", {"total_topics": -1})
    async with client.producer(WIDE, compression="none") as producer:
        await asyncio.gather(*(producer.send(BLOB, key=f"key-{number}") for number in range(200)))
    # Each of the processes has less: 200 messages of 5,000 bytes are over 1,000,000.
    await client.admin.set_limits("public/default/wide", {"storage_bytes_max": 900_000})

    async def is_full() -> bool:
        try:
            async with client.producer(WIDE) as producer:
                await producer.send(b"", key="key-1")
        except LimitExceededError as error:
            return "storage_bytes_max of public/default/wide must be at most 900000" in str(error)
        return False

    await until(is_full, "it is never full")


async def connections_of_a_role_are_counted_over_all_processes(client: AsyncClient, url: str) -> None:
    """A client has one to each process that it needs, and each of them counts."""
    await client.admin.grant("public", "ann", ["produce", "consume"])
    await client.admin.set_limits("role:ann", {"connections_max": PROCESSES})
    async with AsyncClient(url, token="token-of-ann") as ann, ann.producer(WIDE) as producer:
        await asyncio.gather(*(producer.send(b"x", key=f"key-{number}") for number in range(50)))  # one to each

        async def is_refused() -> bool:
            try:
                async with AsyncClient(url, token="token-of-ann") as another:
                    await another.producer(WIDE)
            except LimitExceededError as error:
                return f"connections_max of role:ann must be at most {PROCESSES}, got connection" in str(error)
            return False

        await until(is_refused, "one more is served, whichever process it is at")


async def test_limits_hold_for_the_server(start: Start, tmp_path: Path) -> None:
    roles, config = tmp_path / "roles", tmp_path / "engine.toml"
    roles.write_text("".join(f"{line_of(role, f'token-of-{role}')}\n" for role in ("root", "ann")))
    config.write_text(f"roles_file = {str(roles)!r}\nsuperusers = ['root']\n")
    url = start(tmp_path / "data", "--config", str(config)).url
    async with AsyncClient(url, token="token-of-root") as root:
        await root.admin.create_topic(WIDE, segments=12)
        await connections_of_a_role_are_counted_over_all_processes(root, url)
        await a_rate_is_shared_by_the_processes_as_they_need_it(root)
        await topics_and_storage_are_counted_over_all_processes(root, url)
