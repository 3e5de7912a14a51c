"""`engine perf produce|consume`: throughput and latency on this machine, measured through the public client."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from engine.cli import lines, output, perf_compare
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.message_options import compression_option
from engine.client.base.options import CompressionName
from engine.errors import AlreadyExistsError, UnsupportedError

if TYPE_CHECKING:
    from engine.model.policies import Durability
    from engine.sync import Client

CHUNK_MESSAGES = 10_000
CHUNKS_PER_S = 20  # at a steady rate
IDLE_S = 3.0

Chunk = tuple[list[bytes], list[bytes] | None]  # values and keys


@click.group(cls=Group)
def command() -> None:
    """Measure throughput and latency."""


command.add_command(perf_compare.command)


@command.command(epilog=examples("engine perf produce -n 1000000 --size 100 --mode bulk"))
@click.option("--topic", default="perf", show_default=True, help="The topic; created if it does not exist.")
@click.option(
    "-n",
    "--messages",
    type=click.IntRange(1),
    metavar="N",
    default=1_000_000,
    show_default=True,
    help="How many to send.",
)
@click.option("--size", type=click.IntRange(0), metavar="BYTES", default=100, show_default=True, help="Of each value.")
@click.option(
    "--keys", type=click.IntRange(0), metavar="N", default=10_000, show_default=True, help="Different keys; 0: none."
)
@click.option(
    "--mode",
    type=click.Choice(["one", "bulk", "wait"]),
    default="one",
    show_default=True,
    help="one: send_nowait() each. bulk: send_batch(). wait: send() each, and wait until it is durable.",
)
@click.option("--rate", type=click.IntRange(1), metavar="N", help="Messages a second. [default: as many as possible]")
@click.option(
    "--segments", type=click.IntRange(1), metavar="N", default=1, show_default=True, help="Of a topic that is created."
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "interval", "os", "object"]),
    default="fsync",
    show_default=True,
    help="Of a topic that is created.",
)
@compression_option()
@json_option
@connection_options
def produce(
    url: str,
    data: str | None,
    topic: str,
    messages: int,
    size: int,
    keys: int,
    mode: str,
    rate: int | None,
    segments: int,
    durability: Durability,
    compression: str,
    as_json: bool,
) -> None:
    """Send messages, and measure until all are durable."""
    with connect(url, data, create=True) as client:
        make_topic(client, topic, segments, durability)
        with client.producer(topic, compression=cast(CompressionName, compression)) as producer:
            step = CHUNK_MESSAGES if rate is None else max(1, min(CHUNK_MESSAGES, rate // CHUNKS_PER_S))
            work = chunks(messages, size, keys, step)
            waits, seconds = send(producer, list(work) if rate is None else paced(work, rate), mode, messages)
    measured = output.rates(messages, messages * size, seconds)
    latencies = percentiles(waits)
    if as_json:
        output.print_json({"topic": topic, "mode": mode, **measured, **latencies})
    else:
        extra = [(name, f"{value:.3f}") for name, value in latencies.items()]
        output.print_rates(f"sent to {topic}, acknowledged when durable", measured, *extra)


def make_topic(client: Client, topic: str, segments: int, durability: Durability) -> None:
    """Create the topic unless it exists."""
    try:
        client.admin.create_topic(topic, segments=segments, durability=durability)
    except AlreadyExistsError:
        lines.say(f"{topic} exists already: --segments and --durability are ignored")


def chunks(messages: int, size: int, keys: int, step: int) -> Iterator[Chunk]:
    """(values, keys) of the messages, `step` at a time. Chunks share their values: memory stays small."""
    names = [f"k{n:07d}".encode() for n in range(keys)]
    value = bytes(n % 251 for n in range(size))
    for start in range(0, messages, step):
        count = min(step, messages - start)
        chosen = [names[(start + i) % keys] for i in range(count)] if keys else None
        yield [value] * count, chosen


def paced(work: Iterable[Chunk], rate: int) -> Iterator[Chunk]:
    """Yield each chunk when it is due at `rate` messages per second."""
    start, count = time.perf_counter(), 0
    for chunk in work:
        time.sleep(max(0.0, start + count / rate - time.perf_counter()))
        yield chunk
        count += len(chunk[0])


def send(producer: Any, work: Iterable[Chunk], mode: str, total: int) -> tuple[list[float], float]:
    """Send all chunks. Returns (seconds per acknowledgement, in `wait` mode; total seconds)."""
    waits: list[float] = []
    one_chunk = {"one": send_one_by_one, "bulk": send_bulk, "wait": send_and_wait}[mode]
    with output.progress() as bar:
        task = bar.add_task("sending", total=total, note="")
        start = time.perf_counter()
        for values, keys in work:
            waits += one_chunk(producer, values, keys)
            bar.advance(task, len(values))
        producer.flush()
        return waits, time.perf_counter() - start


def send_one_by_one(producer: Any, values: list[bytes], keys: list[bytes] | None) -> list[float]:
    """Like a program that produces one message at a time."""
    send_nowait = producer.send_nowait
    if keys is None:
        for value in values:
            send_nowait(value)
    else:
        for value, key in zip(values, keys, strict=True):
            send_nowait(value, key=key)
    return []


def send_bulk(producer: Any, values: list[bytes], keys: list[bytes] | None) -> list[float]:
    """Like a program whose data are columns."""
    producer.send_batch(values, keys=keys)
    return []


def send_and_wait(producer: Any, values: list[bytes], keys: list[bytes] | None) -> list[float]:
    """Like a program that needs each acknowledgement before it continues. Returns the seconds of each."""
    waits = []
    for index, value in enumerate(values):
        start = time.perf_counter()
        producer.send(value, key=keys[index] if keys else None)
        waits.append(time.perf_counter() - start)
    return waits


def percentiles(waits: list[float]) -> dict[str, float]:
    """{"p50_ms", "p99_ms", "p99.9_ms": milliseconds}; empty when nothing was timed."""
    if not waits:
        return {}
    ordered = sorted(waits)
    return {
        f"p{place:g}_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * place / 100))] * 1000, 3)
        for place in (50, 99, 99.9)
    }


@command.command(epilog=examples("engine perf consume", "engine perf consume -s work --columns"))
@click.option("--topic", default="perf", show_default=True, help="The topic to read.")
@click.option(
    "-n",
    "--messages",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after so many. [default: when none comes for 3 s]",
)
@click.option(
    "-s",
    "--subscription",
    help="Read and acknowledge as this subscription. [default: a checkpoint consumer, without one]",
)
@click.option("--columns", is_flag=True, help="Read each batch as an Arrow table, not message by message.")
@json_option
@connection_options
def consume(
    url: str, data: str | None, topic: str, messages: int | None, subscription: str | None, columns: bool, as_json: bool
) -> None:
    """Read a topic from its start, and measure."""
    if columns and importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError("--columns needs pyarrow 17 or later: pip install pyarrow")
    with connect(url, data) as client, open_reader(client, topic, subscription) as consumer:
        count, byte_count, seconds = read(consumer, messages, columns=columns, acknowledge=subscription is not None)
    measured = output.rates(count, byte_count, seconds)
    if as_json:
        output.print_json({"topic": topic, "columns": columns, **measured})
    else:
        output.print_rates(f"read from {topic}", measured)


def open_reader(client: Client, topic: str, subscription: str | None) -> Any:
    """A consumer that starts at the earliest message."""
    from engine.model.positions import Checkpoint

    if subscription is None:
        return client.checkpoint_consumer(topic, start=Checkpoint.earliest())
    return client.stream_consumer(topic, subscription, initial_position="earliest")


def read(consumer: Any, messages: int | None, *, columns: bool, acknowledge: bool) -> tuple[int, int, float]:
    """Returns (messages, bytes of their values, seconds from the start to the last message)."""
    count = byte_count = 0
    measure = column_bytes if columns else value_bytes
    with output.progress() as bar:
        task = bar.add_task("reading", total=messages, note="")
        start = last = time.perf_counter()
        while messages is None or count < messages:
            left = CHUNK_MESSAGES if messages is None else min(CHUNK_MESSAGES, messages - count)
            batch = consumer.receive_batch(max_messages=left, timeout=IDLE_S)
            if not len(batch):
                break
            byte_count += measure(batch)
            count += len(batch)
            if acknowledge:
                consumer.acknowledge_cumulative(batch)
            last = time.perf_counter()
            bar.update(task, completed=count, note=f"{count:,}")
    return count, byte_count, last - start


def value_bytes(batch: Any) -> int:
    """Access every message, like a program that handles them one by one."""
    return sum(len(message.value) for message in batch)


def column_bytes(batch: Any) -> int:
    import pyarrow.compute as pc

    return pc.sum(pc.binary_length(batch.to_arrow().column("value"))).as_py() or 0
