"""`engine perf compare`: the same work here and at another broker, in turns, each through its own client."""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from engine.cli import output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import examples
from engine.cli.peers.own import OwnTopic
from engine.cli.peers.peer import Peer, Rows, connected, scheme_of
from engine.cli.secrets import is_argument

KEYS = 10_000
POOL = 1_024  # different values
EACH_SHARE = 100  # of the messages, one in so many is sent alone and awaited
EACH_MIN = 10
URLS = "ENGINE_COMPARE_URLS"

Open = Callable[[str], Peer]


class Measured(NamedTuple):
    """Messages a second, but for `delay_ms`: one message until it is acknowledged."""

    publish: float
    consume: float
    delay_ms: float


def _without_secrets(context: click.Context, parameter: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a URL with a secret that is given as an argument."""
    for one in urls if is_argument(context, parameter) else ():
        if "@" in one:
            raise click.BadParameter(
                f"{shown(one)} must have no secret here, since the process list shows arguments to all users; "
                f"set {URLS} in the environment, to URLs with spaces between them"
            )
    return urls


@click.command(
    name="compare",
    epilog=examples(
        "engine perf compare redis://127.0.0.1:6379 nats://127.0.0.1:4222",
        "engine perf compare kafka://127.0.0.1:9092 -n 500000 --size 1024",
    ),
)
@click.argument("urls", nargs=-1, required=True, metavar="URL...", envvar=URLS, callback=_without_secrets)
@click.option(
    "-n",
    "--messages",
    type=click.IntRange(1),
    metavar="N",
    default=100_000,
    show_default=True,
    help="How many to send.",
)
@click.option("--size", type=click.IntRange(1), metavar="BYTES", default=100, show_default=True, help="Of each value.")
@click.option("--turns", type=click.IntRange(1), metavar="N", default=3, show_default=True, help="How often each goes.")
@json_option
@connection_options
def command(
    urls: tuple[str, ...], messages: int, size: int, turns: int, url: str, data: str | None, as_json: bool
) -> None:
    """Measure other brokers on the same work.

    A URL is kafka://HOST:PORT, redis://…, nats://… or that of another Engine. Each makes a topic of its own, which is
    deleted in the end, and is used by its own client (confluent-kafka, redis, nats-py), which must be installed. What
    an acknowledgement is worth is each broker's: here it is on disk. URLs with secrets in them are given in the
    environment, as ENGINE_COMPARE_URLS.
    """
    for one in urls:
        scheme_of(one)
    rows = sample(messages, size)
    with connect(url, data, create=True) as client:
        openers: dict[str, Open] = {"engine": lambda topic: OwnTopic(client, topic)}
        openers |= {shown(one): opener(one) for one in urls}
        found = in_turns(openers, rows, turns)
    if as_json:
        output.print_json({name: [one._asdict() for one in each] for name, each in found.items()})
    else:
        output.print_table(COLUMNS, table(found))


def shown(url: str) -> str:
    """Without what may be a secret."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def opener(url: str) -> Open:
    return lambda topic: connected(url, topic)


def sample(count: int, size: int) -> Rows:
    """Keys of 8 bytes, values that do not compress; the same each time."""
    chance = random.Random(7)
    values = [chance.randbytes(size) for _ in range(min(POOL, count))]
    keys = [b"k%07d" % n for n in range(KEYS)]
    return [(chance.choice(keys), values[n % POOL]) for n in range(count)]


def in_turns(openers: dict[str, Open], rows: Rows, turns: int) -> dict[str, list[Measured]]:
    """The figures of each, a new topic for each turn."""
    found: dict[str, list[Measured]] = {name: [] for name in openers}
    with output.progress() as bar:
        task = bar.add_task("measuring", total=turns * len(openers), note="")
        for turn in range(turns):
            for name in openers if turn % 2 == 0 else reversed(openers):
                bar.update(task, note=name)
                with opened(openers[name]) as peer:
                    found[name].append(measure(peer, rows))
                bar.advance(task)
    return found


@contextmanager
def opened(make: Open) -> Iterator[Peer]:
    peer = make(f"engine-perf-{secrets.token_hex(4)}")
    try:
        yield peer
    finally:
        peer.close()


def measure(peer: Peer, rows: Rows) -> Measured:
    """One turn. Raises OSError where a message came back otherwise than it was sent."""
    each = rows[: max(EACH_MIN, len(rows) // EACH_SHARE)]
    peer.publish_each(each[:EACH_MIN])  # what the first one costs is not measured
    delay = _seconds(lambda: peer.publish_each(each)) / len(each)
    publish = _seconds(lambda: peer.publish(rows))
    total = len(rows) + len(each) + len(each[:EACH_MIN])
    sizes: list[int] = []
    consume = _seconds(lambda: sizes.append(peer.consume(total)))
    if sizes[0] != total * len(rows[0][1]):
        raise OSError(f"{total:,} messages had {sizes[0]:,} bytes, {total * len(rows[0][1]):,} were sent")
    return Measured(len(rows) / publish, total / consume, delay * 1e3)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


COLUMNS = ("broker", "publish/s", "ratio", "consume/s", "ratio", "one message, ms", "ratio")


def table(found: dict[str, list[Measured]]) -> Iterator[list[str]]:
    """Medians, and how many times better this broker was in the same turns."""
    own = found["engine"]
    for name, each in found.items():
        cells = [name]
        for field in Measured._fields:
            theirs, ours = ([getattr(one, field) for one in some] for some in (each, own))
            less = field == "delay_ms"
            ratio = statistics.median(b / a if less else a / b for a, b in zip(ours, theirs, strict=True))
            middle = statistics.median(theirs)
            cells += [f"{middle:.3f}" if less else f"{middle:,.0f}", "" if each is own else f"{ratio:.1f} ×"]
        yield cells
