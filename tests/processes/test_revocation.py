"""A right that is taken away at one process of a server ends what is attached by it at all of them.

One test, as starting such a server takes seconds.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.client.client import AsyncClient
from engine.errors import AuthenticationError, AuthorizationError
from tests.processes.conftest import PROCESSES, Start

pytestmark = pytest.mark.timeout(300)

WAIT_S_MAX = 60.0


async def topics_of_each_process(root: AsyncClient) -> list[str]:
    """A topic of one segment for each process, which owns it."""
    found: dict[str, str] = {}
    for number in itertools.count():
        topic = f"topic-{number}"
        await root.admin.create_topic(topic, segments=1)
        (segment,) = (await root.admin.get_stats(topic))["segments"].values()
        found.setdefault(segment["owner"], topic)
        if len(found) == PROCESSES:
            break
    return list(found.values())


class Attached:
    """A producer and consumers of one topic, which have all worked."""

    def __init__(self, producer: Any, stream: Any, queue: Any) -> None:
        self._producer = producer
        self._consumers = stream, queue

    @classmethod
    async def at(cls, client: AsyncClient, topic: str) -> Attached:
        producer = await client.producer(topic)
        stream = await client.stream_consumer(topic, "s", initial_position="earliest")
        queue = await client.queue_consumer(topic, "q", initial_position="earliest")
        made = cls(producer, stream, queue)
        await producer.send(b"x")
        for consumer in made._consumers:
            assert await consumer.receive(WAIT_S_MAX) is not None
        return made

    def ends(self) -> list[asyncio.Task[Exception]]:
        """What each of them ends with."""
        receives = [consumer.receive for consumer in self._consumers]
        return [asyncio.create_task(_end(work)) for work in (*receives, lambda: self._producer.send(b"y"))]


async def _end(work: Any) -> Exception:
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                await work()
            except engine.EngineError as e:
                return e


async def test_a_revocation_reaches_every_process(start: Start, tmp_path: Path) -> None:
    roles, config = tmp_path / "roles", tmp_path / "engine.toml"
    lines = {role: f"{line_of(role, f'token-of-{role}')}\n" for role in ("root", "ann", "bob")}
    roles.write_text("".join(lines.values()))
    config.write_text(f"roles_file = {str(roles)!r}\nsuperusers = ['root']\n")
    url = start(tmp_path / "data", "--config", str(config)).url
    async with AsyncClient(url, token="token-of-root") as root:
        topics = await topics_of_each_process(root)
        for role in ("ann", "bob"):
            await root.admin.grant("public", role, ["produce", "consume"])
        async with AsyncClient(url, token="token-of-ann") as ann, AsyncClient(url, token="token-of-bob") as bob:
            of_ann = [await Attached.at(ann, topic) for topic in topics]
            ends = [task for one in of_ann for task in one.ends()]

            # The request is answered by one process.
            await root.admin.revoke("public", "ann")
            assert [type(end) for end in await asyncio.gather(*ends)] == [AuthorizationError] * 3 * PROCESSES
            for topic in topics:
                with pytest.raises(AuthorizationError):
                    await ann.producer(topic)

            # What another role has goes on; a right that is given again counts at each process.
            of_bob = [await bob.producer(topic) for topic in topics]
            for producer in of_bob:
                await producer.send(b"z")
            await root.admin.grant("public", "ann", ["produce"])
            for topic in topics:
                await _until_attached(ann, topic)

            # So it is with a token that is taken out of the file.
            roles.write_text(lines["root"] + lines["ann"])
            ends = [asyncio.create_task(_end(lambda producer=producer: producer.send(b"z"))) for producer in of_bob]
            assert [type(end) for end in await asyncio.gather(*ends)] == [AuthenticationError] * PROCESSES


async def _until_attached(client: AsyncClient, topic: str) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                async with client.producer(topic) as producer:
                    await producer.send(b"x")
                return
            except AuthorizationError:
                pass  # this process has not heard of it yet
