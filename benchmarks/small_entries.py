"""What one small entry costs: processor time, or instructions, from the frame to its receipt (bar P17).

    python benchmarks/small_entries.py                        # each way once, microseconds of processor time
    python benchmarks/small_entries.py --way alone --count 20000
    python benchmarks/small_entries.py --base ../base/.venv/bin/python     # in turns with another build
    python benchmarks/small_entries.py --callgrind            # instructions an entry, which repeat almost exactly
    python benchmarks/small_entries.py --calls --way publish  # functions of Python an entry calls, by `cProfile`

Broker and peer are in one process, on one loop, over TCP on 127.0.0.1; the log is in the page cache (durability "os"),
so that the disk says nothing. The peer of `alone`, `crowd`, `pipeline`, `deal` and `share` is raw: it has its frames
ready and counts what comes back, which costs about a tenth of what the broker does.

    alone     a frame of one entry of one message of 100 B, the next one behind its receipt
    crowd     64 producers on one connection, a frame of one such entry each, the next ones behind all receipts
    pipeline  one producer, 64 such frames at a time
    deal      one producer, a frame of 64 such entries, dealt to four queue consumers; the next behind all of them
    share     the same, in four buckets, of which each of four stream consumers has one
    publish   the public client: publish one message and await its receipt, then the next
    client    the public client: publish one message, receive it, acknowledge without waiting, then the next
    queue     the same through a queue consumer
    unacked, unacked-queue
              the same two without acknowledgements, of which there are more or fewer from run to run
    shared-queue
              as `unacked-queue`, with two consumers of the subscription, which receive in turn
    shared-stream
              the same with two stream consumers, which share the segment by its four buckets
    clients   the public client: 64 publishers with one message outstanding each
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

sys.path.append(str(Path(__file__).resolve().parent.parent))  # a benchmark may run as a script

import engine
from engine._native.format.crc32c import crc32c
from engine._native.produce.hashing import xxh64
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.chunks import ChunkPool
from engine.wire.framing import FrameReader, encode_bytes
from tests.reference.entry_reference import PlainMessage, encode

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
VALUE = bytes(range(100))
TOPIC = "small"
SEGMENT = f"segment://public/default/{TOPIC}/0000-ffff-0"
CROWD = 64
DEALT = 4  # consumers
ENDS = [0x10000 // DEALT * (i + 1) - 1 for i in range(DEALT)]  # of the buckets that they share
KEYS = [b"k%07d" % n for n in range(16)]  # in all buckets
RAW = ("alone", "crowd", "pipeline", "deal", "share")
SWEEP_S = 60.0  # what goes by the clock would weigh the more, the slower the run is
WARM = 20 if TINY else 320
COUNTS = {
    "alone": 5_000,
    "crowd": 300,
    "pipeline": 300,
    "deal": 300,
    "share": 300,
    "publish": 3_000,
    "client": 3_000,
    "queue": 3_000,
    "unacked": 3_000,
    "unacked-queue": 3_000,
    "shared-queue": 3_000,
    "shared-stream": 3_000,
    "clients": 300,
}
CALLGRIND_COUNTS = {
    "alone": 500,
    "crowd": 20,
    "pipeline": 20,
    "deal": 20,
    "share": 20,
    "publish": 300,
    "client": 300,
    "queue": 300,
    "unacked": 300,
    "unacked-queue": 300,
    "shared-queue": 300,
    "shared-stream": 300,
    "clients": 20,
}
CALL_COUNTS = {
    "alone": 1_024,
    "crowd": 16,
    "pipeline": 16,
    "deal": 16,
    "share": 16,
    "publish": 1_024,
    "client": 1_024,
    "queue": 1_024,
    "unacked": 1_024,
    "unacked-queue": 1_024,
    "shared-queue": 1_024,
    "shared-stream": 1_024,
    "clients": 16,
}
ENTRIES = {
    "alone": 1,
    "crowd": CROWD,
    "pipeline": CROWD,
    "deal": CROWD,
    "share": CROWD,
    "publish": 1,
    "client": 1,
    "queue": 1,
    "unacked": 1,
    "unacked-queue": 1,
    "shared-queue": 1,
    "shared-stream": 1,
    "clients": CROWD,
}


class Raw(asyncio.BufferedProtocol):
    """A peer that parses what it has to know, and counts the entries of receipts and the messages it is sent."""

    def __init__(self) -> None:
        self._reader = FrameReader(ChunkPool(), self._received)
        self.transport: asyncio.Transport
        self.receipts = self.messages = 0
        self.receipts_wanted = self.messages_wanted = 0
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> Any:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        self._reader.received(size)

    def _received(self, header: Any, payload: memoryview) -> None:
        if type(header) is commands.SendReceipt:
            self.receipts += len(header.sequences) + sum(len(one.sequences) for one in header.more or ())
        if type(header) is commands.Message:
            self.messages += header.messages
        if type(header) in (commands.SendReceipt, commands.Message) and self.has_less():
            return
        if not self.done.done():
            self.done.set_result(header)

    def has_less(self) -> bool:
        """Whether receipts or messages have to come."""
        return self.receipts < self.receipts_wanted or self.messages < self.messages_wanted

    async def ask(self, frames: bytes, receipts: int = 0, messages: int = 0) -> Any:
        """Send frames; the answer, or the last header once there are so many receipts and messages."""
        self.receipts_wanted += receipts
        self.messages_wanted += messages
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(frames)
        return await self.done


def entries_of(name: str, count: int, ends: Sequence[int]) -> list[bytes]:
    """Entries of a producer, of one message each, with the sequences 0, 1, and so on. `ends`: of buckets, in turn."""
    message, who = [PlainMessage(VALUE, b"k0000007")], name.encode()
    of_buckets = [bytearray(encode(message, producer=who, producer_id=xxh64(who), buckets=(end, end))) for end in ends]
    found = []
    for sequence in range(count):
        entry = of_buckets[sequence % len(ends)]
        entry[48:64] = 2 * sequence.to_bytes(8, "little")
        entry[8:12] = crc32c(entry[12:80]).to_bytes(4, "little")
        found.append(bytes(entry))
    return found


def send_frame(ident: int, *entries: bytes) -> bytes:
    return encode_bytes(commands.Send(producer_id=ident, entries=len(entries)), b"".join(entries))


async def raw_peer(url: str, producers: int) -> Raw:
    """A peer with so many producers attached, whose ids are 1, 2, and so on."""
    host, _, port = url.removeprefix("engine://").partition(":")
    _, peer = await asyncio.get_running_loop().create_connection(Raw, host, int(port))
    hello = commands.Connect(
        magic=commands.MAGIC, protocol=commands.PROTOCOL_VERSION, features=list(commands.FEATURES), client="raw"
    )
    await peer.ask(encode_bytes(hello))
    for ident in range(1, producers + 1):
        attach = commands.Producer(
            request_id=ident,
            producer_id=ident,
            topic=SEGMENT,
            producer_name=f"p{ident}",
            access_mode="shared",
        )
        answer = await peer.ask(encode_bytes(attach))
        assert type(answer) is commands.ProducerSuccess, answer
    return peer


async def attach_some(peer: Raw, consumers: int, **mode: Any) -> None:
    """Consumers of one subscription, with ids from 1,001 on and more credit than they use."""
    for ident in range(1_001, 1_001 + consumers):
        subscribe = commands.Subscribe(
            request_id=ident,
            consumer_id=ident,
            topic=SEGMENT,
            subscription="s",
            consumer_name=f"c{ident}",
            initial_position="earliest",
            **mode,
        )
        answer = await peer.ask(encode_bytes(subscribe))
        assert type(answer) is commands.SubscribeSuccess, answer
        peer.transport.write(encode_bytes(commands.Flow(consumer_id=ident, messages=1 << 32, bytes=1 << 40)))


Timed = Callable[[Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]


async def raw_way(url: str, way: str, rounds: int, timed: Timed) -> None:
    """`rounds` times what `way` says, after a warm-up."""
    producers = CROWD if way == "crowd" else 1
    each = ENTRIES[way]
    dealt = each if way in ("deal", "share") else 0
    ends = ENDS if way == "share" else [0xFFFF]
    peer = await raw_peer(url, producers)
    total = WARM // each + 1 + rounds
    if way == "crowd":
        of = [entries_of(f"p{ident}", total, ends) for ident in range(1, producers + 1)]
        frames = [b"".join(send_frame(i + 1, of[i][n]) for i in range(producers)) for n in range(total)]
    else:
        own = entries_of("p1", total * each, ends)
        of_rounds = [own[n * each : n * each + each] for n in range(total)]
        frames = [send_frame(1, *of) if dealt else b"".join(send_frame(1, one) for one in of) for of in of_rounds]
    if way == "deal":
        await attach_some(peer, DEALT, mode="queue")
    elif way == "share":
        await attach_some(peer, DEALT, mode="shared", bucketBoundaries=ENDS)
    for frame in frames[:-rounds]:
        await peer.ask(frame, each, dealt)

    async def work() -> None:
        for frame in frames[-rounds:]:
            await peer.ask(frame, each, dealt)

    await timed(work)
    peer.transport.close()


def is_sharing(consumer: Any) -> bool:
    """Whether a stream consumer is attached to segments, all of which it shares."""
    return {each.mode for each in consumer.attachments.values() if each.connected} == {DeliveryMode.SHARED}


async def client_way(url: str, way: str, rounds: int, timed: Timed) -> None:
    """The same through the public client."""
    async with engine.AsyncClient(url) as client, client.producer(TOPIC) as producer:
        works: list[asyncio.Task[None]] = []
        if way == "clients":

            async def publish(count: int) -> None:
                for _ in range(count):
                    await producer.send(VALUE, key=b"k0000007")

            async def run(count: int) -> None:
                await asyncio.gather(*(publish(count) for _ in range(CROWD)))

        elif way == "publish":

            async def run(count: int) -> None:
                for _ in range(count):
                    await producer.send(VALUE, key=b"k0000007")

        elif way.startswith("shared"):
            attach: Any = client.queue_consumer if way == "shared-queue" else client.stream_consumer
            members = [await attach(TOPIC, "s", initial_position="earliest") for _ in range(2)]
            while way == "shared-stream" and not all(is_sharing(one) for one in members):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            arrived = loop.create_future()

            async def work(consumer: engine.AsyncQueueConsumer[bytes] | engine.AsyncStreamConsumer[bytes]) -> None:
                while True:
                    message = await consumer.receive()
                    arrived.set_result(message)

            async def run(count: int) -> None:
                nonlocal arrived
                for n in range(count):
                    arrived = loop.create_future()
                    sent = producer.send(VALUE, key=KEYS[n % len(KEYS)])
                    await arrived
                    await sent

            works = [asyncio.create_task(work(member)) for member in members]

        else:
            if way.endswith("queue"):
                queue = await client.queue_consumer(TOPIC, "s", initial_position="earliest")
                receive, acknowledge = queue.receive, queue.acknowledge_nowait
            else:
                stream = await client.stream_consumer(TOPIC, "s", initial_position="earliest")
                receive, acknowledge = stream.receive, stream.acknowledge_cumulative_nowait

            async def run(count: int) -> None:
                for _ in range(count):
                    sent = producer.send(VALUE, key=b"k0000007")
                    message = await receive()
                    if not way.startswith("unacked"):
                        acknowledge(message)
                    await sent

        await run(WARM // ENTRIES[way] + 1)
        await timed(lambda: run(rounds))
        for one in works:
            one.cancel()


def count_instructions(state: str) -> None:
    """Have valgrind begin to count, or end. It listens while this process runs, so the wait is a loop, which counts."""
    asked = subprocess.Popen(["callgrind_control", "-i", state, str(os.getpid())], stdout=subprocess.DEVNULL)
    while asked.poll() is None:
        time.sleep(0.001)


async def measure(way: str, rounds: int, *, counted: bool, profile: cProfile.Profile | None = None) -> float:
    """Processor time of an entry, in seconds, of the broker and its peer. `counted`: valgrind counts instructions."""
    seconds = 0.0

    async def timed(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        nonlocal seconds
        if counted:
            count_instructions("on")
        if profile is not None:
            gc.collect()
            gc.freeze()
            profile.enable()
        begun = time.process_time()
        await work()
        seconds = time.process_time() - begun
        if profile is not None:
            profile.disable()
        if counted:
            count_instructions("off")

    with tempfile.TemporaryDirectory() as data:
        config = {"durability": "os", "transaction_sweep_interval": SWEEP_S}
        options: dict[str, Any] = {"listen": "127.0.0.1:0", "shared": False, "config": config}
        async with engine.open_async(data, **options) as server:
            shared = way in ("share", "shared-stream")
            await server.admin.create_topic(TOPIC, entry_buckets=len(ENDS) if shared else 1)
            if shared:
                await server.admin.set_auto_scale_policy(TOPIC, {"enabled": False})
            use = raw_way if way in RAW else client_way
            await use(server.service_url, way, rounds, timed)
    return seconds / rounds / ENTRIES[way]


def in_child(
    python: str, way: str, rounds: int, *before: str, after: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    words = [*before, python, __file__, "--way", way, "--count", str(rounds), "--bare", *after]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=1200)


def seconds_in_child(python: str, way: str, rounds: int) -> float:
    """Processor time of an entry, of a process of its own."""
    return float(in_child(python, way, rounds).stdout)


def instructions(python: str, way: str, rounds: int) -> float:
    """Of one entry."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no"]
    run = in_child(python, way, rounds, *valgrind, after=["--counted"])
    return collected(run.stderr) / rounds / ENTRIES[way]


def collected(said: str) -> int:
    """The instructions that valgrind says it has counted."""
    found = re.search(r"Collected : (\d+)", said)
    if found is None:
        raise RuntimeError(f"valgrind has counted nothing: {said}")
    return int(found[1])


def calls(way: str, rounds: int) -> None:
    """Print the functions of Python that an entry calls, the most frequent first."""
    profile = cProfile.Profile(builtins=False)
    uvloop.run(measure(way, rounds, counted=False, profile=profile))
    print_calls(profile, way, rounds * ENTRIES[way], "an entry", by=0)


def side_of(file: str) -> str:
    """Whose code it is."""
    room = file.rpartition("src/engine/")[2].partition("/")[0]
    if room == "client":
        return "client"
    return "broker" if room in ("broker", "storage", "metadata", "control") else "both, and what is the library's"


def print_calls(profile: cProfile.Profile, way: str, rounds: int, of: str, by: int) -> None:
    """The functions of Python that were called in so many rounds; first the most frequent (`by` 0), or those that take
    the longest by themselves (2).
    """
    found: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    sides: dict[str, float] = dict.fromkeys(("client", "broker", "both, and what is the library's"), 0.0)
    for (file, *_), (count, *_) in found.items():
        if Path(file) != Path(__file__):
            sides[side_of(file)] += count / rounds
    print(f"{way}: {sum(sides.values()):.2f} calls {of}: {', '.join(f'{n:.2f} {side}' for side, n in sides.items())}")
    for (file, line, name), (count, _, own, *_) in sorted(found.items(), key=lambda each: -each[1][by])[:120]:
        place = f"{file.rpartition('engine/')[2]}:{line} {name}"
        print(f"{count / rounds:8.2f} calls {own / rounds * 1e6:8.2f} us  {place}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=list(COUNTS), action="append")
    parser.add_argument("--count", type=int, help="rounds")
    parser.add_argument("--turns", type=int, default=1 if TINY else 5)
    parser.add_argument("--base", help="the Python of another build, to be measured in turns with this one")
    parser.add_argument("--callgrind", action="store_true")
    parser.add_argument("--calls", action="store_true", help="count calls of Python functions instead")
    parser.add_argument("--bare", action="store_true", help="one run, in this process: seconds of an entry")
    parser.add_argument("--counted", action="store_true", help="with --bare, under valgrind: count its instructions")
    given = parser.parse_args()
    if given.bare:
        print(uvloop.run(measure(given.way[0], given.count, counted=given.counted)))
        return
    for way in given.way or list(COUNTS):
        if given.calls:
            calls(way, given.count or (3 if TINY else CALL_COUNTS[way]))
            continue
        rounds = given.count or (3 if TINY else (CALLGRIND_COUNTS if given.callgrind else COUNTS)[way])
        pythons = [sys.executable] if given.base is None else [given.base, sys.executable]
        if given.callgrind:
            found = [instructions(python, way, rounds) for python in pythons]
            texts = [f"{one / 1e3:9.1f} k instructions" for one in found]
            ratios = [found[-1] / found[0]]
        else:
            turns = [[seconds_in_child(one, way, rounds) for one in pythons] for _ in range(given.turns)]
            texts = [f"{statistics.median(t[i] for t in turns) * 1e6:8.2f} us" for i in range(len(pythons))]
            ratios = [t[-1] / t[0] for t in turns]
        compared = f"  {statistics.median(ratios):.2f} x ({min(ratios):.2f}-{max(ratios):.2f})" if given.base else ""
        print(f"{way:13} {'  '.join(texts)}{compared}", flush=True)


if __name__ == "__main__":
    main()
