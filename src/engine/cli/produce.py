"""`engine produce`: lines of a file or of the standard input, one message each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO, cast

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.values import key_values, separator, topic_name
from engine.client.base.options import CompressionName
from engine.errors import InvalidArgumentError

PROGRESS_STEP = 1000


@click.command()
@click.argument("topic", type=topic_name)
@click.option("--file", "source", type=click.File("rb"), default="-", help="Read here instead of the standard input.")
@click.option("--key", help="The key of every message.")
@click.option("--key-separator", metavar="TEXT", help=r"A line is KEY, this text, VALUE. \t means a tab.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Of every message; repeatable.")
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@json_option
@connection_options
def command(
    topic: str,
    url: str,
    data: str | None,
    source: BinaryIO,
    key: str | None,
    key_separator: str | None,
    properties: tuple[str, ...],
    compression: str,
    as_json: bool,
) -> None:
    """Send each line as a message, and return when all are durable."""
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    common = key_values(properties) or None
    records = split_lines(source, None if key is None else key.encode(), separator(key_separator))
    count = byte_count = 0
    total = source_size(source)
    failures: list[Exception] = []
    with (
        connect(url, data, create=True) as client,
        client.producer(topic, compression=cast(CompressionName, compression), on_error=failures.append) as producer,
        output.progress(disable=total is None) as bar,
    ):
        task = bar.add_task("sending", total=total, note="")
        for record_key, value, line_size in records:
            producer.send_nowait(value, key=record_key, properties=common)
            count += 1
            byte_count += line_size
            if failures:
                break  # what follows would wait for its own timeout, and fail too; flush() raises
            if count % PROGRESS_STEP == 0:
                bar.update(task, completed=byte_count, note=f"{count:,} messages")
        producer.flush()
    if as_json:
        output.print_json({"topic": topic, "messages": count, "bytes": byte_count})
    else:
        lines.say(f"{output.plural(count, 'message')} {'is' if count == 1 else 'are'} durable in {topic}")


def source_size(source: BinaryIO) -> int | None:
    """How many bytes will come, where that is known: not from a pipe or a terminal."""
    if source is sys.stdin.buffer or not source.seekable():
        return None
    size = source.seek(0, 2)
    source.seek(0)
    return size


def split_lines(source: BinaryIO, key: bytes | None, by: bytes | None) -> Iterator[tuple[bytes | None, bytes, int]]:
    """(key, value, bytes read) of each line. Raises InvalidArgumentError for a line without the separator."""
    for number, line in enumerate(source, 1):
        text = line.removesuffix(b"\n")
        if by is None:
            yield key, text, len(line)
            continue
        head, found, tail = text.partition(by)
        if not found:
            what = f"line {number} has no {by.decode()!r} between key and value"
            raise InvalidArgumentError(f"{what}; nothing from it on was sent")
        yield head, tail, len(line)
