"""Black box: the server of Apache Pulsar's clients is killed time and again; judged by the checker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulsar
import pytest

import engine
from engine.testing.checker import check, describe
from engine.testing.history import History, value_of
from tests.chaos.server import Server
from tests.pulsar.conftest import EARLIEST, connect, place_of

TOPIC = "persistent://public/default/orders"
COUNT = 900
WAIT_S_MAX = 60.0


def key_of(number: int) -> str | None:
    return None if number % 3 == 0 else f"k{number % 10}"


class Writer:
    """Sends, and writes down what it is told."""

    def __init__(self, client: pulsar.Client, history: History, batching: pulsar.BatchingType) -> None:
        self._history = history
        self._exact = batching == pulsar.BatchingType.Default  # what it is told of places
        self._producer = client.create_producer(
            TOPIC, "writer", batching_enabled=True, batching_max_publish_delay_ms=5, send_timeout_millis=0,
            block_if_queue_full=True, batching_type=batching,
        )  # fmt: skip
        self.done = 0

    def send(self, number: int) -> None:
        key = key_of(number)
        value = value_of("writer", number, key)
        call = self._history.invoke("writer", "send", value=value.decode(), key=key, topic=TOPIC)

        def sent(result: Any, ident: Any) -> None:
            self.done += 1
            if result == pulsar.Result.Ok:
                segment, offset = place_of(ident)
                call.ok(segment=segment, offset=offset if self._exact else -1)
            else:
                call.info(error=str(result))

        self._producer.send_async(value, sent, partition_key=key)


def read(url: str, history: History) -> None:
    """All that is there, as a final reading by a client of ours."""
    with engine.Client(url) as client:
        consumer = client.checkpoint_consumer(TOPIC, start=engine.Checkpoint.earliest())
        history.record("reader", "reading", reading=1)
        left = COUNT
        while batch := consumer.receive_batch(timeout=WAIT_S_MAX if left > 0 else 0.5):
            left -= len(batch)
            for message in batch:
                key = None if message.key is None else message.key.decode()
                place = {"segment": message.segment_id, "offset": message.offset}
                history.record("reader", "final", reading=1, value=message.value.decode(), key=key, **place)


@pytest.mark.parametrize("batching", [pulsar.BatchingType.Default, pulsar.BatchingType.KeyBased], ids=str)
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=[pytest.mark.fuzz, pytest.mark.timeout(400)])])
async def test_nothing_is_lost_or_twice_when_the_server_is_killed(
    tmp_path: Path, kills: int, batching: pulsar.BatchingType
):
    server, history = Server(tmp_path / "data"), History(asyncio.get_running_loop().time)
    await server.start()
    client = connect(f"pulsar://127.0.0.1:{server.port}")
    consumer = await asyncio.to_thread(client.subscribe, TOPIC, "s", initial_position=EARLIEST)
    writer = await asyncio.to_thread(Writer, client, history, batching)
    received: dict[str, int] = {}

    def receive(most: int) -> None:
        for _ in range(most):
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                return
            received[message.data().decode()] = message.redelivery_count()
            consumer.acknowledge(message)

    for turn in range(kills + 1):
        for number in range(COUNT * turn // (kills + 1), COUNT * (turn + 1) // (kills + 1)):
            await asyncio.to_thread(writer.send, number)
        await asyncio.to_thread(receive, 100)
        if turn < kills:
            await server.kill()
            await server.start()
    async with asyncio.timeout(WAIT_S_MAX):
        while writer.done < COUNT or len(received) < COUNT:
            await asyncio.to_thread(receive, COUNT)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(read, server.url, history)
    await server.close()
    assert not (violations := check(history.events)), describe(violations)
