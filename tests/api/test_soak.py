"""Every kind of client on one topic, and on one namespace: they come, go and die at random while the topic changes its
shape by hand and by itself. The independent checker judges.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.settings.config import BrokerConfig
from engine.client.local import LocalClient
from engine.testing.checker import check, describe
from engine.testing.history import Call, History
from engine.testing.members import (
    DelayingSender,
    NamespaceMember,
    QueueMember,
    ResumingSender,
    StreamMember,
    read_letters,
)
from engine.testing.workload import CheckpointReader, Reader, Sender, Shaper, read_all, write_layout

TOPIC = "orders"
NAMESPACE = "shop/eu"
LETTERS_S_MAX = 120.0
IDLE_S = 2.0  # longer than what a dead consumer had, or did not acknowledge in time, or is for later, stays away
SECONDS = 5.0
NOTICED_S = 1.0

Connect = Callable[[], engine.AsyncClient]
CONFIG = BrokerConfig(
    entry_buckets=8,
    consumer_grace_period=0.5,
    scalable_topic_auto_scale_interval=0.5,
    scalable_topic_load_report_interval=0.25,
    scalable_topic_max_segments=4,
    scalable_topic_split_cooldown=2.0,
    scalable_topic_merge_cooldown=3.0,
    scalable_topic_merge_window=2.0,
    scalable_topic_rebucket_cooldown=1.0,
    scalable_topic_split_floor_msg_rate_in=50.0,
    scalable_topic_split_msg_rate_in_threshold=100.0,
    scalable_topic_merge_msg_rate_in_threshold=20.0,
)


@pytest.fixture(params=["embedded", "tcp"])
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes clients of one embedded engine, or of one behind a socket."""
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            opened = await stack.enter_async_context(engine.open_async(tmp_path / "data", config=CONFIG, shared=False))
            broker = opened.broker
            yield lambda: LocalClient(broker.accept_local, broker.service_url, broker.admin)
        else:
            opened = await stack.enter_async_context(
                engine.open_async(
                    tmp_path / "data", config=CONFIG, listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False
                )
            )
            yield lambda: engine.AsyncClient(opened.service_url)


class Calm(logging.Handler):
    """Calm, until the server says that it drops a connection whose client lives but is slow to answer: one process has
    them all, on a machine that may be busy.
    """

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history
        self._calm: Call | None = history.invoke("nemesis", "calm")
        logging.getLogger("engine.broker.session.connection").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Somebody lost a connection: what is held from before is not compared with what comes."""
        if "dropped" in record.getMessage() and self._calm is not None:
            self._calm.ok()
            self._calm = None
            asyncio.get_running_loop().call_later(NOTICED_S, self._again)

    def _again(self) -> None:
        if self in logging.getLogger("engine.broker.session.connection").handlers:
            self._calm = self._history.invoke("nemesis", "calm")

    def end(self) -> None:
        """It is over."""
        logging.getLogger("engine.broker.session.connection").removeHandler(self)
        if self._calm is not None:
            self._calm.ok()


class Soak:
    """Everybody who is at work, for so many seconds, under one seed."""

    def __init__(self, connect: Connect, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History(asyncio.get_running_loop().time)
        self.client = connect()
        self._connect = connect
        self.streams = [self._member(StreamMember, f"stream{i}", "s") for i in range(5)]
        self.queues = [self._member(QueueMember, f"queue{i}", "q") for i in range(3)]
        self.readers = [self._member(CheckpointReader, f"reader{i}", f"r{i}") for i in range(2)]
        self.wide = NamespaceMember(self.history, connect, "wide", NAMESPACE, "wide", self._own())
        self.wide.kill_rate, self.wide.life_s_max, self.wide.idle_s = 0.3, 2.0, IDLE_S

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def _member(self, kind: type[Reader], name: str, subscription: str) -> Reader:
        member = kind(self.history, self._connect, name, TOPIC, subscription, self._own())
        member.life_s_max, member.kill_rate, member.idle_s = 2.0, 0.3, IDLE_S
        if isinstance(member, QueueMember):
            member.ack_timeout, member.max_redeliveries, member.forget_rate, member.ack_rate = 0.4, 2, 0.05, 1.0
        if isinstance(member, StreamMember):
            member.stall_s_max = 0.5
        return member

    def _senders(self, topic: str) -> list[Sender]:
        own = topic.rsplit("/", 1)[-1]
        resuming = ResumingSender(self.history, self.client, f"{own}-resumer", topic, self._own(), 20)
        senders = [
            Sender(self.history, self.client, f"{own}-plain", topic, self._own(), 100),
            DelayingSender(self.history, self.client, f"{own}-delayer", topic, self._own(), 20),
            resuming.connected(self._connect),
        ]
        for sender in senders:
            sender.pause_s_max = 0.05
            if isinstance(sender, DelayingSender):
                sender.delay_s_max = 1.0
        return senders

    async def run(self, seconds: float) -> None:
        """Work, stop, read everything."""
        calm = Calm(self.history)
        senders = self._senders(TOPIC)
        readers = [*self.streams, *self.queues, *self.readers, self.wide]
        working = [asyncio.create_task(sender.run(1_000_000)) for sender in senders]
        working += [asyncio.create_task(reader.run()) for reader in readers]
        births = asyncio.create_task(self._births(seconds))
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.rng.uniform(0, 0.8))
            await Shaper(self.history, TOPIC, self.rng, segments_max=4).change(self.client.admin)
        await births
        for actor in (*senders, *readers):
            actor.stop()
        await asyncio.gather(*working)
        finishing = [self.streams[0].drain(), self.queues[0].finish(self._backlog), self.wide.drain()]
        await asyncio.gather(*finishing, *(reader.drain() for reader in self.readers))
        calm.end()
        await self._read_everything()

    async def _births(self, seconds: float) -> None:
        """Topics of the namespace, one after the other, each with its messages."""
        for number in range(4):
            topic = f"topic://{NAMESPACE}/t{number}"
            await self.client.admin.create_topic(topic, segments=1)
            await self.client.admin.set_auto_scale_policy(topic, {"enabled": False})
            if number == 0:
                await asyncio.sleep(0)
            self.wide.born(topic)
            sender = Sender(self.history, self.client, f"t{number}", topic, self._own())
            sender.pause_s_max = 0.02
            await sender.run(100)
            await asyncio.sleep(self.rng.uniform(0, seconds / 6))

    async def _backlog(self) -> int:
        return int((await self.client.admin.get_stats(TOPIC))["subscriptions"]["q"]["backlog"])

    async def _until_letters_are_decided(self) -> None:
        """A consumer that died while it moved letters has left a transaction, which holds up those behind it until it
        has timed out.
        """
        async with asyncio.timeout(LETTERS_S_MAX):
            while any(one["heldBackBy"] for one in await self._segments_of(f"{TOPIC}-DLQ")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _segments_of(self, topic: str) -> list[dict[str, Any]]:
        return list((await self.client.admin.get_stats(topic))["segments"].values())

    async def _read_everything(self) -> None:
        for topic in (TOPIC, *self.wide.topics):
            for reading in (1, 2):
                await read_all(self.history, self.client, topic, reading, IDLE_S)
        await self._until_letters_are_decided()
        await read_letters(self.history, self.client, TOPIC, "q")
        write_layout(self.history, TOPIC, await self.client.admin.get_metadata(TOPIC))
        await self.client.close()


async def soaked(connect: Connect, seed: int, seconds: float) -> None:
    """Nothing is broken, and everything happened."""
    print(f"seed {seed}")
    soak = Soak(connect, seed)
    await soak.run(seconds)
    events = soak.history.events
    violations = check(events)
    assert not violations, f"seed {seed}:\n{describe(violations)}"
    assert any(e["what"] == "detach" and e["killed"] for e in events)
    assert any(e["what"] == "letter" for e in events)
    assert any(e.get("place", e.get("segment")) != e.get("segment") for e in events if e["what"] == "deliver")
    assert {0, 1, 2} <= Counter(e["count"] for e in events if "count" in e).keys()
    assert len(soak.wide.topics) == 4


async def test_soak(connect: Connect) -> None:
    """D1 to D4, O1, O2, C1 to C4, DELAY, G1, G2."""
    await soaked(connect, 100, SECONDS)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(6))
async def test_fuzz_soak(connect: Connect, seed: int) -> None:
    await soaked(connect, seed, 60.0)
