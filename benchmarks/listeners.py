"""Crowds that would fill a broker: clients that list and watch a namespace, consumers that hardly read; half are deaf.

Run as a script it is the process that they are in. What the broker keeps resident is looked at meanwhile, and how long
others wait for the acknowledgement of a message, which is compared with the same before.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import statistics
import sys
import time
from typing import Any

from crowds import in_parts
from processes import Child, Server, raise_file_limit
from support import RUN_S_MAX, directory, percentile, run, sized

import engine
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Command
from engine.wire.tcp import TcpConnector

TOPICS = sized(100_000, 30)
CLIENTS = sized(1_000, 4)
CONSUMED_TOPICS = sized(10, 2)
CONSUMED_BYTES = sized(32 * 1024 * 1024, 200_000)  # in each of them
SLOW_S = sized(20, 0) or 0.3  # slow consumers stay for so long
QUIET_S = sized(10, 0) or 0.2
PUBLISH_PAUSE_S = 0.002
MESSAGES_MIN = sized(100, 5)
NAMESPACE = "crowd/listed"
CONNECTED = re.compile(r"connected: (\d+)")
DONE = re.compile(r"done: (\d+) answered, (\d+) refused, (\d+) deaf")


class Listener:
    """One raw connection. Deaf ones ask, and read nothing of the answers; what the others read is only counted."""

    def __init__(self, deaf: bool) -> None:
        self.deaf = deaf
        self.stream: Any = None
        self.names = 0
        self.refused = 0
        self.connected = asyncio.Event()
        self.listed, self.watched = asyncio.Event(), asyncio.Event()

    async def connect(self, url: str) -> None:
        """Connect and shake hands."""
        self.stream = await TcpConnector().connect(url, lambda stream: self)
        hello = {"magic": MAGIC, "protocol": PROTOCOL_VERSION, "features": list(FEATURES), "client": "crowd"}
        self.stream.send(Command.CONNECT, hello)
        await self.connected.wait()
        if self.deaf:
            self.stream._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            self.stream.pause_reading()

    def ask_for_lists(self) -> None:
        """The whole list by pages, and a watch of it; the deaf ask for the first page again and again."""
        what = {"namespace": NAMESPACE, "properties": None, "pattern": None}
        self.stream.send(Command.WATCH_TOPIC_LIST, {"request_id": 1, "session_id": 9, **what, "hash": None})
        for _ in range(100 if self.deaf else 1):
            self.ask_for_page(None)

    def ask_for_page(self, after: str | None) -> None:
        """A page of the list."""
        what = {"namespace": NAMESPACE, "properties": None, "pattern": None}
        self.stream.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": 2, **what, "after": after})

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        """Whatever the broker says."""
        if command is Command.CONNECTED:
            self.connected.set()
        elif command is Command.PING:
            self.stream.send(Command.PONG, {})
        elif command is Command.ERROR:
            self.refused += 1
            self.listed.set()
            self.watched.set()
        elif command is Command.WATCH_TOPIC_LIST_UPDATE and not header["more"]:
            self.watched.set()
        elif command is Command.SUCCESS and header["request_id"] == 2:
            result = header["result"]
            self.names += len(result["topics"])
            if result["more"]:
                self.ask_for_page(result["topics"][-1])
            else:
                self.listed.set()
        elif command is Command.SUBSCRIBE_SUCCESS:
            self.stream.send(Command.FLOW, {"consumer_id": 1, "messages": 1 << 40, "bytes": 1 << 50})
        elif command is Command.MESSAGE and not self.deaf:
            self.stream.pause_reading()
            asyncio.get_running_loop().call_later(1.0, self.stream.resume_reading)

    def pause_writing(self) -> None:
        """It asks for little."""

    def resume_writing(self) -> None:
        """It asks for little."""

    def connection_lost(self, error: Exception | None) -> None:
        """The broker has dropped it."""
        for event in (self.connected, self.listed, self.watched):
            event.set()


async def list_and_watch(url: str, count: int) -> None:
    """What the process of those does that list and watch."""
    crowd = [Listener(deaf=i % 2 == 1) for i in range(count)]
    await in_parts(crowd, lambda one: one.connect(url))
    print("connected:", count, flush=True)
    for one in crowd:
        one.ask_for_lists()
    readers = [one for one in crowd if not one.deaf]
    for one in readers:
        await one.listed.wait()
        await one.watched.wait()
    refused = sum(one.refused > 0 for one in readers)
    print(f"done: {len(readers) - refused} answered, {refused} refused, {count - len(readers)} deaf", flush=True)
    await asyncio.Event().wait()


async def consume_slowly(url: str, count: int) -> None:
    """What the process of slow consumers does."""
    async with engine.AsyncClient(url) as client:
        segments = [await segment_of(client, f"topic://crowd/slow/{i}") for i in range(CONSUMED_TOPICS)]
    crowd = [Listener(deaf=i % 2 == 1) for i in range(count)]
    await in_parts(crowd, lambda one: one.connect(url))
    print("connected:", count, flush=True)
    for i, one in enumerate(crowd):
        what = {"topic": segments[i % len(segments)], "mode": "reader", "subscription": None, "start": 0}
        if one.deaf:  # it has to hear that it is attached
            one.stream.resume_reading()
        one.stream.send(Command.SUBSCRIBE, {"request_id": 1, "consumer_id": 1, "consumer_name": f"c{i}", **what})
    await asyncio.sleep(SLOW_S)
    print(f"done: {count - count // 2} answered, 0 refused, {count // 2} deaf", flush=True)
    await asyncio.Event().wait()


async def segment_of(client: Any, topic: str) -> str:
    """The name of a topic's only segment."""
    (segment,) = (await client.admin.get_metadata(topic))["segments"].values()
    ring = segment["hashRange"]
    return f"segment://{topic.removeprefix('topic://')}/{ring['start']:04x}-{ring['end']:04x}-{segment['segmentId']}"


# -- what it costs the broker, and the others ----------------------------------------------------------------------


class Crowded:
    """A server before and beside a crowd."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.resident_before = 0
        self.resident_most = 0
        self.quiet: list[float] = []
        self.beside: list[float] = []
        self.outcome = (0, 0, 0)  # answered, refused, deaf

    async def publish(self, client: Any, into: list[float], until: Any) -> None:
        """One message after the other, until somebody says stop; seconds to each acknowledgement."""
        async with await client.producer("beside") as producer:
            while not (until() and len(into) >= MESSAGES_MIN):
                began = time.perf_counter()
                await producer.send(b"x" * 100, key=b"k")
                into.append(time.perf_counter() - began)
                self.resident_most = max(self.resident_most, self.server.resident_bytes())
                await asyncio.sleep(PUBLISH_PAUSE_S)

    async def measure(self, kind: str) -> None:
        """Alone for a while, then beside the crowd until that is done."""
        async with engine.AsyncClient(self.server.url) as client:
            await self.publish(client, [], ending_after(QUIET_S / 5))
            self.resident_before, self.resident_most = self.server.resident_bytes(), 0
            await self.publish(client, self.quiet, ending_after(QUIET_S))
            command = [sys.executable, __file__, self.server.url, kind, str(CLIENTS)]
            child = await asyncio.to_thread(Child, command, CONNECTED, ready_s_max=RUN_S_MAX)
            with child:
                await self.publish(client, self.beside, lambda: DONE.search(child.log.read_text()))
                self.outcome = tuple(map(int, DONE.search(child.log.read_text()).groups()))  # type: ignore

    def facts(self) -> dict[str, float]:
        """What is tracked."""
        answered, refused, deaf = self.outcome
        return {
            "resident_growth": float(self.resident_most - self.resident_before),
            "resident_most": float(self.resident_most),
            "p50_ratio": statistics.median(self.beside) / statistics.median(self.quiet),
            "p99_ratio": percentile(self.beside, 0.99) / percentile(self.quiet, 0.99),
            "p50_ms": 1000 * statistics.median(self.beside),
            "p99_ms": 1000 * percentile(self.beside, 0.99),
            "answered": float(answered),
            "refused": float(refused),
            "deaf": float(deaf),
            "messages": float(len(self.beside)),
        }


def ending_after(seconds: float) -> Any:
    """Whether it is time."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def make_topics(url: str) -> None:
    """The namespace that is listed."""
    async with engine.AsyncClient(url) as client:
        names = [f"topic://{NAMESPACE}/a-topic-of-usual-length-{i:06}" for i in range(TOPICS)]
        await in_parts(names, lambda name: client.admin.create_topic(name))


async def fill_topics(url: str) -> None:
    """What slow consumers read."""
    async with engine.AsyncClient(url) as client:
        for i in range(CONSUMED_TOPICS):
            async with await client.producer(f"topic://crowd/slow/{i}") as producer:
                for _ in range(CONSUMED_BYTES // 100_000):
                    producer.send_nowait(bytes(100_000), key=b"k")
                    await producer.writable()
                await producer.flush()


def scenario(kind: str) -> dict[str, float]:
    """ "list" or "consume": a server of its own, the crowd, and what was found."""
    raise_file_limit(2 * CLIENTS + 1_000)
    with directory() as data, Server(data) as server:
        run((make_topics if kind == "list" else fill_topics)(server.url))
        found = Crowded(server)
        run(found.measure(kind))
        return found.facts()


if __name__ == "__main__":
    raise_file_limit(2 * int(sys.argv[3]) + 1_000)
    crowd = list_and_watch if sys.argv[2] == "list" else consume_slowly
    with contextlib.suppress(KeyboardInterrupt):
        run(crowd(sys.argv[1], int(sys.argv[3])))
