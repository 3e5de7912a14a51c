"""`engine consume`: messages on the standard output, one a line or as JSON."""

from __future__ import annotations

import base64
import contextlib
import logging
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.values import key_values, namespace_name, position, separator, topic_name
from engine.errors import NotFoundError
from engine.model.text import plain

if TYPE_CHECKING:
    from engine.sync import Client

BATCH_MESSAGES = 10_000
POLL_S = 1.0


@click.command()
@click.argument("topic", type=topic_name, required=False)
@click.option("--namespace", type=namespace_name, metavar="NAMESPACE", help="All its topics, now and later; needs -s.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only topics that have it; with --namespace."
)
@click.option("-s", "--subscription", help="Read as this subscription, and acknowledge what was printed.")
@click.option(
    "--mode",
    type=click.Choice(["stream", "queue", "checkpoint"]),
    help="[default: checkpoint, which leaves no trace; with -s stream] queue needs -s.",
)
@click.option("-n", "count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--from", "start", default=None, help="earliest, latest or (checkpoint) a time. [default: earliest]")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after this many seconds without a message.")
@click.option("--create", is_flag=True, help="Make the topic where there is none, and wait for its messages.")
@click.option("--key-separator", metavar="TEXT", help=r"Print KEY, this text, VALUE. \t means a tab.")
@json_option
@connection_options
def command(
    topic: str | None,
    namespace: str | None,
    properties: tuple[str, ...],
    url: str,
    data: str | None,
    subscription: str | None,
    mode: str | None,
    count: int | None,
    start: str | None,
    timeout: float | None,
    create: bool,
    key_separator: str | None,
    as_json: bool,
) -> None:
    """Print messages as they arrive. Without -s nothing is acknowledged and no other consumer is affected."""
    mode = mode or ("stream" if subscription else "checkpoint")
    begin = position(start or "earliest")
    check_combination(mode, subscription, begin)
    check_topics(topic, namespace, properties, mode)
    shown = lines.on_terminal()
    show = partial(as_json_line, ascii_only=shown) if as_json else as_line(separator(key_separator), escaped=shown)
    out = sys.stdout.buffer
    with connect(url, data) as client:
        is_new = topic is not None and check_topic(client, topic, create)
        chosen = Chosen(topic, namespace, key_values(properties) or None)
        consumer, acknowledge = open_consumer(client, mode, chosen, subscription, begin)
        if is_new:
            lines.say(f"created {topic}")
        with consumer, connection_news():
            for batch in batches(consumer, count, timeout):
                out.writelines(show(message) for message in batch)
                out.flush()
                acknowledge(batch)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to read: a topic, or the topics of a namespace that have the properties."""

    topic: str | None
    namespace: str | None
    properties: dict[str, str] | None


@contextlib.contextmanager
def connection_news() -> Iterator[None]:
    """Write a line to the error stream when the connection is lost, and when it is re-established."""
    news, handler = logging.getLogger("engine.client.net.pool"), News()
    before = news.level
    news.addHandler(handler)
    news.setLevel(logging.INFO)
    try:
        yield
    finally:
        news.removeHandler(handler)
        news.setLevel(before)


class News(logging.Handler):
    """Writes log messages for a person to read."""

    def emit(self, record: logging.LogRecord) -> None:
        lines.say(f"engine: {record.getMessage()}")


def check_combination(mode: str, subscription: str | None, start: str | datetime) -> None:
    """Raise a usage error for options that exclude each other, before anything is opened."""
    if mode == "checkpoint" and subscription:
        raise click.UsageError("a checkpoint consumer has no subscription: leave -s out, or choose another --mode")
    if mode != "checkpoint" and not subscription:
        raise click.UsageError(f"a {mode} consumer reads as a subscription: name it with -s")
    if mode != "checkpoint" and isinstance(start, datetime):
        raise click.UsageError("--from a time is for --mode checkpoint; `engine subscriptions seek` moves the others")


def check_topics(topic: str | None, namespace: str | None, properties: tuple[str, ...], mode: str) -> None:
    """Raise a usage error for contradictory choices of topics."""
    if (topic is None) == (namespace is None):
        raise click.UsageError("give a TOPIC, or --namespace for all of its topics")
    if namespace is not None and mode == "checkpoint":
        raise click.UsageError("--namespace is for streams and queues: name a subscription with -s")
    if properties and namespace is None:
        raise click.UsageError("--property chooses topics of a --namespace")


def check_topic(client: Client, topic: str, create: bool) -> bool:
    """Whether the topic is new. Raises NotFoundError without --create: most often the name is mistyped."""
    is_new = not client.topic_exists(topic)
    if is_new and not create:
        raise NotFoundError(f"there is no topic {topic}; --create makes it, and so does `engine produce`")
    return is_new


def open_consumer(
    client: Client, mode: str, chosen: Chosen, subscription: str | None, start: str | datetime
) -> tuple[Any, Callable[[Any], object]]:
    """The consumer, and what to call with a printed batch."""
    topic = chosen.topic
    if topic is not None and mode == "checkpoint":
        return client.checkpoint_consumer(topic, start=checkpoint(start)), lambda batch: None
    name = subscription or ""  # check_combination requires one
    which: Any = {"namespace": chosen.namespace, "properties": chosen.properties, "initial_position": str(start)}
    if mode == "stream":
        stream = client.stream_consumer(topic, name, **which)
        return stream, stream.acknowledge_cumulative
    queue = client.queue_consumer(topic, name, **which)
    return queue, queue.acknowledge


def checkpoint(start: str | datetime) -> Any:
    """Where a checkpoint consumer begins."""
    from engine.model.positions import Checkpoint

    if isinstance(start, datetime):
        return Checkpoint.at_timestamp(start)
    return Checkpoint.earliest() if start == "earliest" else Checkpoint.latest()


def batches(consumer: Any, count: int | None, timeout: float | None) -> Iterator[Any]:
    """Batches until `count` messages came, or none came for `timeout` seconds; both None: for ever."""
    left, silent = count, 0.0
    while left is None or left > 0:
        wait = POLL_S if timeout is None else min(POLL_S, timeout - silent)
        batch = consumer.receive_batch(max_messages=min(BATCH_MESSAGES, left or BATCH_MESSAGES), timeout=wait)
        if len(batch):
            yield batch
            silent = 0.0
            left = None if left is None else left - len(batch)
            continue
        check_reader()
        silent += wait
        if timeout is not None and silent >= timeout:
            return


def check_reader() -> None:
    """Raise BrokenPipeError when the reader of our output is gone (`| head`), before the next write would."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def as_line(by: bytes | None, *, escaped: bool = False) -> Callable[[Any], bytes]:
    """Value and newline, with the key before them where a separator was asked for. `escaped`: as a terminal may show
    it, all other control characters than tabs and newlines, and bytes that are no text, spelled out.
    """

    def raw(message: Any) -> bytes:
        value = bytes(message.value) + b"\n"
        return value if by is None else (message.key or b"") + by + value

    return (lambda message: for_terminal(raw(message))) if escaped else raw


def for_terminal(value: bytes) -> bytes:
    """Bytes as a terminal may show them."""
    return plain(value.decode(errors="backslashreplace"), keep="\n\t").encode()


def as_json_line(message: Any, *, ascii_only: bool = False) -> bytes:
    """One object. Bytes that are not text stand in base64 under `…_base64`."""
    fields = {
        **as_text("key", message.key),
        **as_text("value", bytes(message.value)),
        "id": base64.b64encode(message.id.to_bytes()).decode(),
        "topic": message.topic,
        "publish_time": message.publish_time.isoformat(),
        "event_time": message.event_time.isoformat() if message.event_time else None,
        "properties": dict(message.properties),
        "producer": message.producer_name,
        "sequence_id": message.sequence_id,
        "redelivery_count": message.redelivery_count,
    }
    return lines.json_text(fields, ascii_only=ascii_only).encode() + b"\n"


def as_text(name: str, value: bytes | None) -> dict[str, str | None]:
    """A field of bytes as text where it is text."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
