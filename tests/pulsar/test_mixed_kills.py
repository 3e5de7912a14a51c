"""Black box: clients of Apache Pulsar and of ours on the same topics, while the server is killed, a topic is unloaded
and another one splits and merges; judged by the checker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from engine.client.client import AsyncClient
from engine.testing.history import Call, History, value_of
from engine.testing.workload import QueueReader, Reader, Sender, Shaper, StreamReader, read_all
from tests.chaos.progress import Progress, acknowledged
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, IDLE_S, judge
from tests.pulsar.conftest import EARLIEST, connect, place_of

CLASSIC, SCALABLE = "persistent://public/default/orders", "topic://public/default/orders"
BATCH = 20
RECEIVE_MS = 200


class PulsarWriter:
    """A producer of Apache Pulsar's client: batches under a few keys, and without."""

    def __init__(self, history: History, client: pulsar.Client, name: str, rng: random.Random) -> None:
        self._history, self._name, self._rng = history, name, rng
        self._loop = asyncio.get_running_loop()
        self._left = 0
        self._stopped = False
        self._producer = client.create_producer(
            CLASSIC, name, batching_enabled=True, batching_max_publish_delay_ms=5, send_timeout_millis=0,
            block_if_queue_full=True,
        )  # fmt: skip

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Until stopped, and all has its outcome."""
        number = 0
        while not self._stopped:
            calls = []
            for _ in range(self._rng.randint(1, BATCH)):
                key = self._rng.choice((None, *(f"{self._name}-key{n}" for n in range(4))))
                value = value_of(self._name, number, key)
                call = self._history.invoke(self._name, "send", value=value.decode(), key=key, topic=CLASSIC)
                calls.append((value, key, call))
                number += 1
            self._left += len(calls)
            await asyncio.to_thread(self._send, calls)
            await asyncio.sleep(self._rng.uniform(0, 0.2))
        while self._left:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _send(self, calls: list[tuple[bytes, str | None, Call]]) -> None:
        for value, key, call in calls:
            self._producer.send_async(value, self._sent(call), partition_key=key)

    def _sent(self, call: Call) -> Callable[[Any, Any], None]:
        def sent(result: Any, ident: Any) -> None:  # in a thread of the client
            self._loop.call_soon_threadsafe(self._end, call, result, place_of(ident))

        return sent

    def _end(self, call: Call, result: Any, place: tuple[int, int]) -> None:
        self._left -= 1
        if result == pulsar.Result.Ok:
            call.ok(segment=place[0], offset=place[1])
        else:
            call.info(str(result))


class PulsarReader:
    """A consumer of Apache Pulsar's client, which connects again by itself: it attaches once."""

    def __init__(self, history: History, client: pulsar.Client, name: str, kind: str, order: str) -> None:
        """`kind`: its type there; `order`: what it is to the checker, "stream" or "queue"."""
        self._history, self._name, self._order, self._subscription = history, name, order, f"pulsar-{kind}"
        self._consumer = client.subscribe(
            CLASSIC, self._subscription, getattr(pulsar.ConsumerType, kind), initial_position=EARLIEST
        )
        self._attached = history.invoke(name, "attach", subscription=self._subscription, kind=order, topic=CLASSIC)
        self._attached.ok()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Until it is stopped and was given everything."""
        while not self._stopped or self._history.undelivered(self._subscription, CLASSIC):
            messages = await asyncio.to_thread(self._receive)
            for message in messages:
                segment, offset = place_of(message.message_id())
                self._history.record(
                    self._name,
                    "deliver",
                    attachment=self._attached.number,
                    topic=CLASSIC,
                    value=message.data().decode(),
                    key=message.partition_key() or None,
                    segment=segment,
                    offset=offset,
                )
            if messages:
                self._acknowledge(messages)

    def _receive(self) -> list[Any]:
        messages: list[Any] = []
        while len(messages) < BATCH:
            try:
                messages.append(self._consumer.receive(RECEIVE_MS))
            except pulsar.Timeout:
                break
        return messages

    def _acknowledge(self, messages: list[Any]) -> None:
        """The client groups acknowledgements: it is not known when they have come."""
        if self._order == "queue":
            for message in messages:
                self._consumer.acknowledge(message)
            return
        segment, offset = place_of(messages[-1].message_id())
        positions = {str(segment): offset + 1}
        call = self._history.invoke(self._name, "ack", subscription=self._subscription, positions=positions)
        self._consumer.acknowledge_cumulative(messages[-1])
        call.info("not answered")

    def finish(self) -> None:
        self._history.record(self._name, "drained", subscription=self._subscription)


async def mixed(data: Path, seed: int, strikes: int) -> History:
    """Load by all of them, and so many strikes; then everything is read."""
    rng, sent = random.Random(seed), Progress(acknowledged)
    history = History(asyncio.get_running_loop().time, sent.heard)
    server = Server(data)
    await server.start()
    ours, theirs = AsyncClient(server.url), connect(f"pulsar://127.0.0.1:{server.port}")
    await ours.admin.create_topic(SCALABLE, segments=2)
    own = lambda: random.Random(rng.random())  # noqa: E731
    writers = [PulsarWriter(history, theirs, f"pulsar{n}", own()) for n in range(2)]
    kinds = (("exclusive", "Exclusive", "stream"), ("shared0", "Shared", "queue"), ("shared1", "Shared", "queue"))
    pulsars = [PulsarReader(history, theirs, *one) for one in kinds]
    senders: list[Any] = [Sender(history, ours, f"p{n}", topic, own()) for n, topic in enumerate((CLASSIC, SCALABLE))]
    natives = [_native(history, server, kind, topic, own()) for kind in (StreamReader, QueueReader)
               for topic in (CLASSIC, SCALABLE)]  # fmt: skip
    sending = [asyncio.create_task(sender.run(100_000)) for sender in senders]
    reading = [asyncio.create_task(one.run()) for one in (*writers, *natives)]
    consuming = [asyncio.create_task(one.run()) for one in pulsars]
    shaper = Shaper(history, SCALABLE, own())
    for number in range(strikes):
        await sent.more(rng.randint(20, 100))
        await shaper.change(ours.admin)
        if number % 2:
            history.record("nemesis", "fault", text="unload")
            await ours.admin.unload_topic(CLASSIC)
        else:
            history.record("nemesis", "fault", text="kill -9")
            await server.kill()
            await server.start()
    await sent.more(100)
    assert shaper.done
    for actor in (*writers, *senders, *natives):
        actor.stop()
    await asyncio.wait_for(asyncio.gather(*sending, *reading), ENDING_S_MAX)
    for topic in (CLASSIC, SCALABLE):
        await read_all(history, ours, topic, 1, IDLE_S)
    for one in pulsars:
        one.stop()
    await asyncio.wait_for(asyncio.gather(*consuming), ENDING_S_MAX)
    for one in pulsars:
        one.finish()
    await asyncio.gather(*(reader.drain() for reader in natives))
    await asyncio.to_thread(theirs.close)
    await ours.close()
    await server.close()
    return history


def _native(history: History, server: Server, kind: type[Reader], topic: str, rng: random.Random) -> Reader:
    name = f"{kind.kind}-{topic.partition(':')[0]}"
    reader = kind(history, lambda: AsyncClient(server.url), name, topic, f"sub-{name}", rng)
    reader.life_s_max, reader.idle_s = 2.0, IDLE_S
    return reader


@pytest.mark.timeout(600)
async def test_clients_of_both_kinds_lose_nothing_when_the_server_is_killed_and_topics_change(tmp_path):
    judge(await mixed(tmp_path / "data", 1, 3), tmp_path, 1)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(300, 305))
async def test_fuzz_clients_of_both_kinds(tmp_path, seed):
    judge(await mixed(tmp_path / "data", seed, 30), tmp_path, seed)
