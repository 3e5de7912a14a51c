"""`engine produce`: lines, lines of JSON or an Arrow stream, from a file or the standard input, as messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from engine.cli import lines, output, records
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import examples
from engine.cli.message_options import compression_option, encrypt_option
from engine.cli.values import key_files, key_values, separator, topic_name
from engine.client.base.options import CompressionName
from engine.errors import EngineError, InvalidArgumentError, MessageTooLargeError

if TYPE_CHECKING:
    from engine.cli.records import Records
    from engine.sync import Producer


@click.command(
    epilog=examples(
        "seq 1 1000 | engine produce numbers",
        r"engine produce orders --file orders.tsv --key-separator '\t'",
        "engine consume orders -n 500 --format json | engine produce copy --format json",
    )
)
@click.argument("topic", type=topic_name)
@click.option("--file", "source", type=click.File("rb"), default="-", help="Read this file, not the standard input.")
@click.option(
    "--format",
    "form",
    type=click.Choice(records.FORMATS),
    default="raw",
    show_default=True,
    help="raw: each line is a value. json: each line is an object with value, key, properties, event_time. arrow: an "
    "Arrow IPC stream with those columns. json and arrow are what engine consume writes.",
)
@click.option("--key", help="The key of every message.")
@click.option(
    "--key-separator", metavar="TEXT", help=r"Split each line into key and value at the first TEXT; \t is a tab."
)
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Of every message; repeatable.")
@compression_option()
@encrypt_option()
@json_option
@connection_options
def command(
    topic: str,
    url: str,
    data: str | None,
    source: BinaryIO,
    form: str,
    key: str | None,
    key_separator: str | None,
    properties: tuple[str, ...],
    compression: str,
    encrypt_for: tuple[str, ...],
    as_json: bool,
) -> None:
    """Send the lines of a file or of the standard input.

    Returns when all messages are durable. A missing topic is created, unless the broker is configured not to.
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    if form != "raw" and (key is not None or key_separator is not None):
        raise click.UsageError(f"--key and --key-separator are for --format raw; {form} has a key in each message")
    read = reader(form, source, key, separator(key_separator), key_values(properties) or None)
    count = byte_count = 0
    total = source_size(source)
    failures: list[Exception] = []
    with (
        connect(url, data, create=True) as client,
        client.producer(
            topic,
            compression=cast(CompressionName, compression),
            on_error=failures.append,
            encryption_keys=key_files(encrypt_for),
        ) as producer,
        output.progress(disable=total is None) as bar,
    ):
        task = bar.add_task("sending", total=total, note="")
        for some in read:
            send(producer, some)
            count += len(some)
            byte_count += some.size
            if failures:
                break  # what follows would wait for its own timeout, and fail too; flush() raises
            bar.update(task, completed=byte_count, note=f"{count:,} messages")
        producer.flush()
    if as_json:
        output.print_json({"topic": topic, "messages": count, "bytes": byte_count})
    else:
        lines.say(f"{output.plural(count, 'message')} {'is' if count == 1 else 'are'} durable in {topic}")


def reader(
    form: str, source: BinaryIO, key: str | None, by: bytes | None, common: dict[str, str] | None
) -> Iterator[Records]:
    if form == "json":
        return records.json_records(source, common)
    if form == "arrow":
        return records.arrow_records(source, common)
    return records.raw_records(source, None if key is None else key.encode(), by, common)


def send(producer: Producer[Any], some: Records) -> None:
    """Enqueue them. Raises the error of the first message that cannot be sent, with its place, after those before it.

    A batch is checked as a whole before any of it is enqueued, so one with such a message is sent message by message.
    """
    try:
        producer.send_batch(some.values, some.keys, event_times=some.event_times, properties=some.properties)
    except (MessageTooLargeError, InvalidArgumentError):
        for index, (value, key, event_time, properties) in enumerate(some.rows()):
            try:
                producer.send_nowait(value, key=key, event_time=event_time, properties=properties)
            except (EngineError, TypeError) as e:
                raise InvalidArgumentError(f"{some.place(index)}: {e}; nothing from it on was sent") from e


def source_size(source: BinaryIO) -> int | None:
    """How many bytes will come, where that is known: not from a pipe or a terminal."""
    if source is sys.stdin.buffer or not source.seekable():
        return None
    size = source.seek(0, 2)
    source.seek(0)
    return size
