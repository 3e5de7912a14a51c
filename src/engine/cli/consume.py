"""`engine consume`: messages on the standard output, in one of several formats."""

from __future__ import annotations

import contextlib
import logging
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import formats, lines
from engine.cli.connection import connect, connection_options
from engine.cli.groups import did_you_mean, examples
from engine.cli.message_options import decrypt_option
from engine.cli.template import TOKENS, Template
from engine.cli.values import key_files, key_values, namespace_name, position, separator, topic_name
from engine.errors import EngineError, NotFoundError
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.sync import Client

BATCH_MESSAGES = 10_000
POLL_S = 1.0


TOKENS_HELP = "\n".join(
    [
        "\n\n\b\nTokens of -f:",
        *(f"  %{token}  {meaning}" for token, (meaning, _) in TOKENS.items()),
        "  %%  a percent sign",
        r"  \n \t \r \0 \\ \x1e  characters",
    ]
)


@click.command(
    epilog=examples(
        "engine consume orders --from 2026-01-01 -n 10",
        "engine consume orders -s audit --mode queue --format json",
        r"engine consume orders -f '%o %k %v\n'",
        "engine consume orders --timeout 1 --format arrow > orders.arrow",
    )
    + TOKENS_HELP
)
@click.argument("topic", type=topic_name, required=False)
@click.option(
    "--namespace", type=namespace_name, metavar="NAMESPACE", help="All topics of it, new ones included; needs -s."
)
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only topics that have it; with --namespace."
)
@click.option("-s", "--subscription", help="Read as this subscription, and acknowledge what was printed.")
@click.option(
    "--mode",
    type=click.Choice(["stream", "queue", "checkpoint"]),
    help="How to read. stream and queue need -s; checkpoint reads without a subscription. [default: stream with -s, "
    "checkpoint without]",
)
@click.option("-n", "count", type=click.IntRange(1), metavar="N", help="Stop after this many messages.")
@click.option("--from", "start", default=None, help="earliest, latest or (checkpoint) a time. [default: earliest]")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this many seconds without a message."
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist, and wait for messages.")
@click.option(
    "--format",
    "form",
    type=click.Choice(formats.FORMATS),
    help="raw: the value and a newline. json: an object a line, which engine produce --format json reads. csv: with a "
    "header. arrow: an Arrow IPC stream. [default: raw]",
)
@click.option(
    "-f",
    "--template",
    metavar="TEXT",
    help=r"Write this for each message: text and the tokens below; no newline is added.",
)
@click.option(
    "--key-separator", metavar="TEXT", help=r"With raw: write the key and TEXT before each value; \t is a tab."
)
@decrypt_option
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
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
    form: str | None,
    template: str | None,
    key_separator: str | None,
    decrypt_with: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print messages as they arrive.

    Without -s nothing is acknowledged, and other consumers are not affected.
    """
    mode = mode or ("stream" if subscription else "checkpoint")
    begin = position(start or "earliest")
    check_combination(mode, subscription, begin)
    check_topics(topic, namespace, properties, mode)
    form = chosen_format(form, template, key_separator, as_json)
    shape = None if template is None else Template(template)
    written = formats.writer(form, shape, separator(key_separator), sys.stdout.buffer, terminal=lines.on_terminal())
    with connection_news(), connect(url, data) as client:  # from the first word that it says
        is_new = topic is not None and check_topic(client, topic, create)
        chosen = Chosen(topic, namespace, key_values(properties) or None, key_files(decrypt_with))
        with _without_warning() if is_new else contextlib.nullcontext():
            consumer, acknowledge = open_consumer(client, mode, chosen, subscription, begin)
        if is_new:
            lines.say(f"created {topic}")
        with consumer, written as write:
            for batch in batches(consumer, count, timeout):
                write(batch)
                acknowledge(batch)


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """The client warns when a consumer creates its topic. Here the command was told to, and reports it itself."""
    log = logging.getLogger("engine.client")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def chosen_format(form: str | None, template: str | None, key_separator: str | None, as_json: bool) -> str:
    """The format to write. Raises a usage error for options that exclude each other."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json is --format json, and excludes --format {form}")
    chosen = "json" if as_json else form
    if template is not None and (chosen or key_separator):
        raise click.UsageError("-f excludes --format, --json and --key-separator")
    if key_separator is not None and chosen not in (None, "raw"):
        raise click.UsageError(f"--key-separator is for --format raw, not {chosen}")
    if chosen == "arrow" and lines.on_terminal():
        raise click.UsageError("--format arrow writes binary data: redirect it into a file or another program")
    return chosen or "raw"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to read: a topic, or the topics of a namespace that have the properties."""

    topic: str | None
    namespace: str | None
    properties: dict[str, str] | None
    keys: dict[str, Path] | None = None  # that messages are decrypted with


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
        what = f"there is no topic {topic}; --create makes it, and so does `engine produce`."
        raise NotFoundError(f"{what}{did_you_mean(topic, topics_beside(client, topic))}")
    return is_new


def topics_beside(client: Client, topic: str) -> list[str]:
    """The topics of the namespace, named as `topic` is: in full, with the namespace, or alone."""
    name = TopicName.parse(topic)
    prefix = topic.removesuffix(name.local)
    with contextlib.suppress(EngineError):  # these are for a suggestion
        found = client.list_topics(f"{name.tenant}/{name.namespace}")
        return [f"{prefix}{TopicName.parse(one).local}" for one in found]
    return []


def open_consumer(
    client: Client, mode: str, chosen: Chosen, subscription: str | None, start: str | datetime
) -> tuple[Any, Callable[[Any], object]]:
    """The consumer, and what to call with a printed batch."""
    topic = chosen.topic
    if topic is not None and mode == "checkpoint":
        return client.checkpoint_consumer(
            topic, start=checkpoint(start), decryption_keys=chosen.keys
        ), lambda batch: None
    name = subscription or ""  # check_combination requires one
    which: Any = {"namespace": chosen.namespace, "properties": chosen.properties, "initial_position": str(start)}
    which["decryption_keys"] = chosen.keys
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
