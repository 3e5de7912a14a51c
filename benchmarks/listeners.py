"""Crowds that would fill a broker: clients that list and watch a namespace, consumers that hardly read; half are deaf.

Run as a script it is the process that they are in. What the broker keeps resident is measured meanwhile, its processor
time and how late its loop is, and how long others wait for the acknowledgement of a message. That is compared with the
same before: alone, and beside a process that computes and has nothing to do with the broker. It and the crowd run
at idle priority, as if they had machines of their own: their own processor time is not taken for the crowd's effect
on the broker. The figures include all work of the broker for the crowd, and of the kernel. Time taken by a hypervisor
is reported (`stolen_s`): a run with much of it is not conclusive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from crowds import in_parts
from processes import Child, Server, raise_file_limit
from support import RUN_S_MAX, directory, percentile, run, sized

import engine
from engine.wire import commands
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION
from engine.wire.connector import SocketConnector

TOPICS = sized(100_000, 30)
CLIENTS = sized(1_000, 4)
CONSUMED_TOPICS = sized(40, 2)
CONSUMED_MESSAGES = sized(40, 2)  # in each of them
CONSUMED_SIZE = 100_000
SLOW_PAUSE_S = float(os.environ.get("ENGINE_BENCH_PAUSE_S", sized(10, 1) / 10))  # after each block
QUIET_S = sized(10, 0) or 0.2
PUBLISH_PAUSE_S = 0.002
MESSAGES_MIN = sized(100, 5)
NAMESPACE = "crowd/listed"
CONNECTED = re.compile(r"connected: (\d+)")
DONE = re.compile(r"done: (\d+) answered, (\d+) refused, (\d+) deaf")
COMPUTING = re.compile(r"(computing)")
LAG = re.compile(r'^engine_event_loop_lag_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$', re.MULTILINE)


class Listener:
    """One raw connection. Deaf ones ask, and read nothing of the answers; what the others read is only counted."""

    def __init__(self, deaf: bool, wanted: int) -> None:
        """`wanted`: names, or messages, that there are."""
        self.deaf = deaf
        self.wanted = wanted
        self.stream: Any = None
        self.names = 0
        self.refused = 0
        self.received = 0  # messages
        self.connected = asyncio.Event()
        self.listed, self.watched, self.consumed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def connect(self, url: str) -> None:
        await SocketConnector().connect(url, self._made)
        self.stream.send(
            commands.Connect(magic=MAGIC, protocol=PROTOCOL_VERSION, features=list(FEATURES), client="crowd")
        )
        await self.connected.wait()
        if self.deaf:
            self.stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            self.stream.pause_reading()

    def _made(self, stream: Any) -> Listener:
        self.stream = stream
        return self

    def ask_for_lists(self) -> None:
        """The whole list by pages, and a watch of it; the deaf ask for the first page again and again."""
        self.stream.send(commands.WatchTopicList(request_id=1, session_id=9, namespace=NAMESPACE))
        for _ in range(100 if self.deaf else 1):
            self.ask_for_page(None)

    def ask_for_page(self, after: str | None) -> None:
        """A page of the list."""
        self.stream.send(commands.GetTopicsOfNamespace(request_id=2, namespace=NAMESPACE, after=after))

    def frame_received(self, header: commands.Header, payload: memoryview) -> None:
        if isinstance(header, commands.Connected):
            self.connected.set()
        elif isinstance(header, commands.Ping):
            self.stream.send(commands.Pong())
        elif isinstance(header, commands.Error):
            self.refuse()
        elif isinstance(header, commands.WatchTopicListUpdate) and not header.more:
            self.watched.set()
        elif isinstance(header, commands.Success) and header.request_id == 2:
            result = header.result
            self.names += len(result["topics"])
            if result["more"]:
                self.ask_for_page(result["topics"][-1])
            else:
                self.listed.set()
        elif isinstance(header, commands.SubscribeSuccess):
            self.stream.send(commands.Flow(consumer_id=1, messages=1 << 40, bytes=1 << 50))
        elif isinstance(header, commands.Message) and not self.deaf:
            self.message_received(header.messages)

    def message_received(self, count: int) -> None:
        """A block of so many; the next one after a pause."""
        self.received += count
        if self.received >= self.wanted:
            self.consumed.set()
        self.stream.pause_reading()
        asyncio.get_running_loop().call_later(SLOW_PAUSE_S, self.stream.resume_reading)

    def refuse(self) -> None:
        """It was not given what it wants."""
        self.refused += 1
        for event in (self.listed, self.watched, self.consumed):
            event.set()

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        """The broker has dropped it."""
        self.connected.set()
        self.refuse()


async def list_and_watch(url: str, count: int, topics: int) -> None:
    """What the process of those does that list and watch."""
    crowd = [Listener(i % 2 == 1, topics) for i in range(count)]
    await in_parts(crowd, lambda one: one.connect(url))
    print("connected:", count, flush=True)
    for one in crowd:
        one.ask_for_lists()
    readers = [one for one in crowd if not one.deaf]
    for one in readers:
        await one.listed.wait()
        await one.watched.wait()
    await say_done(crowd, lambda one: one.names)


async def say_done(crowd: list[Listener], counted: Callable[[Listener], int]) -> None:
    """Check that every reader got the whole list, or was refused."""
    readers = [one for one in crowd if not one.deaf]
    refused = sum(one.refused > 0 for one in readers)
    if wrong := [one for one in readers if not one.refused and counted(one) != one.wanted]:
        raise AssertionError(f"{len(wrong)} that read have not received what there is")
    print(f"done: {len(readers) - refused} answered, {refused} refused, {len(crowd) - len(readers)} deaf", flush=True)
    await asyncio.Event().wait()


async def consume_slowly(url: str, count: int, topics: int) -> None:
    """What the process of slow consumers does."""
    async with engine.AsyncClient(url) as client:
        segments = [await segment_of(client, f"topic://crowd/slow/{i}") for i in range(topics)]
    crowd = [Listener(i % 2 == 1, CONSUMED_MESSAGES) for i in range(count)]
    await in_parts(crowd, lambda one: one.connect(url))
    print("connected:", count, flush=True)
    for i, one in enumerate(crowd):
        if one.deaf:  # it has to read the answer to its SUBSCRIBE
            one.stream.resume_reading()
        one.stream.send(
            commands.Subscribe(
                request_id=1,
                consumer_id=1,
                consumer_name=f"c{i}",
                topic=segments[i % len(segments)],
                mode="reader",
                start=0,
            )
        )
    for one in crowd:
        if not one.deaf:
            await one.consumed.wait()
    await say_done(crowd, lambda one: one.received)


def compute() -> None:
    """What the process does that only takes processor time."""
    print("computing", flush=True)
    while True:
        sum(range(100_000))


async def segment_of(client: Any, topic: str) -> str:
    """The name of a topic's only segment."""
    (segment,) = (await client.admin.get_metadata(topic))["segments"].values()
    ring = segment["hashRange"]
    return f"segment://{topic.removeprefix('topic://')}/{ring['start']:04x}-{ring['end']:04x}-{segment['segmentId']}"


# -- what it costs the broker, and the others ----------------------------------------------------------------------


class Crowded:
    """A server before and beside a crowd. Times are seconds to each acknowledgement."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.resident_before = 0
        self.resident_most = 0
        self.alone: list[float] = []
        self.computing: list[float] = []
        self.beside: list[float] = []
        self.took = 0.0  # until the crowd was served
        self.processor = 0.0  # of the broker, meanwhile
        self.stolen = 0.0  # processor time that the machine was not given, from beginning to end
        self.lags: dict[float, float] = {}  # how often its loop was at most that late, meanwhile
        self.outcome = (0, 0, 0)  # answered, refused, deaf

    async def publish(self, client: Any, into: list[float], until: Any) -> None:
        """Send one message after the other, until stopped."""
        async with await client.producer("beside") as producer:
            while not (until() and len(into) >= MESSAGES_MIN):
                began = time.perf_counter()
                await producer.send(b"x" * 100, key=b"k")
                into.append(time.perf_counter() - began)
                self.resident_most = max(self.resident_most, self.server.resident_bytes())
                await asyncio.sleep(PUBLISH_PAUSE_S)

    async def measure(self, kind: str, clients: int, topics: int) -> None:
        """Alone for a while, beside a process that computes, then beside the crowd until that is served."""
        script, stolen = [sys.executable, __file__, self.server.url], stolen_s()
        async with engine.AsyncClient(self.server.url) as client:
            await self.publish(client, [], ending_after(QUIET_S / 5))
            self.resident_before, self.resident_most = self.server.resident_bytes(), 0
            await self.publish(client, self.alone, ending_after(QUIET_S))
            with Child([*script, "compute"], COMPUTING, yields=True):
                await self.publish(client, self.computing, ending_after(QUIET_S))
            began, processor, lags = time.monotonic(), self.server.processor_s(), self.loop_lags()
            crowd = [*script, kind, str(clients), str(topics)]
            starting = asyncio.to_thread(Child, crowd, CONNECTED, ready_s_max=RUN_S_MAX, yields=True)
            with await starting as child:
                await self.publish(client, self.beside, lambda: is_done(child))
                self.outcome = tuple(map(int, DONE.search(child.log.read_text()).groups()))  # type: ignore
            self.took, self.processor = time.monotonic() - began, self.server.processor_s() - processor
            self.stolen = stolen_s() - stolen
            self.lags = {late: count - lags.get(late, 0.0) for late, count in self.loop_lags().items()}

    def loop_lags(self) -> dict[float, float]:
        """{seconds: looks at the loop that found it at most so late}."""
        with urllib.request.urlopen(f"{self.server.admin}/metrics") as page:
            return {float(late): float(count) for late, count in LAG.findall(page.read().decode())}

    def late(self, share: float) -> float:
        """Seconds that the loop was late at most, in that share of looks."""
        wanted = share * max(self.lags.values(), default=0.0)
        return min((late for late, count in self.lags.items() if count >= wanted), default=0.0)

    def facts(self) -> dict[str, float]:
        answered, refused, deaf = self.outcome
        return {
            "resident_growth": float(self.resident_most - self.resident_before),
            "resident_most": float(self.resident_most),
            "p50_ratio": statistics.median(self.beside) / statistics.median(self.alone),
            "p99_ratio": percentile(self.beside, 0.99) / percentile(self.alone, 0.99),
            "p50_ratio_computing": statistics.median(self.beside) / statistics.median(self.computing),
            "p99_ratio_computing": percentile(self.beside, 0.99) / percentile(self.computing, 0.99),
            **times("alone", self.alone),
            **times("computing", self.computing),
            **times("beside", self.beside),
            "took_s": self.took,
            "processor_s": self.processor,
            "stolen_s": self.stolen,
            "loop_late_p50_ms": 1000 * self.late(0.5),
            "loop_late_p99_ms": 1000 * self.late(0.99),
            "answered": float(answered),
            "refused": float(refused),
            "deaf": float(deaf),
            "messages": float(len(self.beside)),
        }


def times(name: str, seconds: list[float]) -> dict[str, float]:
    """Milliseconds: median, 99th percentile, longest."""
    found = {"p50": statistics.median(seconds), "p99": percentile(seconds, 0.99), "max": max(seconds)}
    return {f"{name}_{what}_ms": 1000 * value for what, value in found.items()}


def stolen_s() -> float:
    """Seconds of processor time that others on the same hardware have had, since this machine was started."""
    import psutil

    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def is_done(child: Child) -> bool:
    """Whether a crowd is served. Raises RuntimeError when it has failed."""
    text = child.log.read_text()
    if "Error" in text:
        raise RuntimeError(text[-2000:])
    return DONE.search(text) is not None


def ending_after(seconds: float) -> Any:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def make_topics(url: str, count: int) -> None:
    """The namespace that is listed."""
    async with engine.AsyncClient(url) as client:
        names = [f"topic://{NAMESPACE}/a-topic-of-usual-length-{i:06}" for i in range(count)]
        await in_parts(names, lambda name: client.admin.create_topic(name))


async def fill_topics(url: str, count: int) -> None:
    async with engine.AsyncClient(url) as client:
        for i in range(count):
            async with await client.producer(f"topic://crowd/slow/{i}") as producer:
                for _ in range(CONSUMED_MESSAGES):
                    producer.send_nowait(bytes(CONSUMED_SIZE), key=b"k")
                    await producer.writable()
                await producer.flush()


def scenario(kind: str, clients: int = CLIENTS, topics: int = 0) -> dict[str, float]:
    """ "list" or "consume", so many topics: a server of its own, the crowd, and what was found."""
    topics = topics or {"list": TOPICS, "consume": CONSUMED_TOPICS}[kind]
    raise_file_limit(2 * clients + 1_000)
    with directory() as data, Server(data) as server:
        run({"list": make_topics, "consume": fill_topics}[kind](server.url, topics))
        found = Crowded(server)
        run(found.measure(kind, clients, topics))
        return found.facts()


if __name__ == "__main__":
    if sys.argv[2] == "compute":
        compute()
    raise_file_limit(2 * int(sys.argv[3]) + 1_000)
    crowd = list_and_watch if sys.argv[2] == "list" else consume_slowly
    with contextlib.suppress(KeyboardInterrupt):
        run(crowd(sys.argv[1], int(sys.argv[3]), int(sys.argv[4])))
