"""A small data directory with a bit of everything, quiet when it ends: each byte of it is damaged once.

usage: python -m tests.fuzz.directory_program DIR closed|killed
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import engine
from engine.broker import server
from engine.storage.file.format import HEADER_SIZE_MAX, Header

CONFIG = {"retention_time": None, "scalable_topic_auto_scale_enabled": False}
FILE_SIZE = 4096  # 13 of these messages: each segment has a full file and a short one
NAME = "reader"  # of every consumer: after a kill it goes on as itself, and has the place that is kept for it
TOPICS = ("shaped", "transacted", "loose")
QUIET_S_MAX = 60.0


def main(directory: str, ending: str) -> None:
    """Prints nothing."""
    configured = server.storage_config
    server.storage_config = lambda *a, **kw: dataclasses.replace(configured(*a, **kw), file_size_max=FILE_SIZE)
    e = engine.open(directory, config=CONFIG, shared=False)
    held = [*shaped(e), *transacted(e)]
    e.admin.create_topic("loose", durability="interval")
    subscribe(e, "loose")
    with e.producer("loose") as producer:
        send(producer, 0, 14)
    for each in held:
        each.close()
    e.close()
    if ending == "killed":  # by another process than the one that wrote most of it: the metadata's log is short then
        e = engine.open(directory, config=CONFIG, shared=False)
        for topic in TOPICS:
            with e.producer(topic) as producer:
                send(producer, 98, 7)  # each of the keys, so that every active segment has some
        wait_until_quiet(e, Path(directory))
        os.kill(os.getpid(), signal.SIGKILL)


def subscribe(e: engine.Engine, topic: str) -> None:
    for name in ("untouched", "stream", "queue"):
        e.admin.create_subscription(topic, name, initial_position="earliest")


def send(producer: Any, first: int, count: int, **more: Any) -> None:
    for n in range(first, first + count):
        producer.send(b"%d " % n * 40, key=b"%d" % (n % 7), **more)


def shaped(e: engine.Engine) -> list[Any]:
    """A sealed segment, its two children, subscriptions of both kinds inside them."""
    e.admin.create_topic("shaped")
    subscribe(e, "shaped")
    producer = e.producer("shaped", name="numbered")
    send(producer, 0, 16)
    stream = e.stream_consumer("shaped", "stream", name=NAME)
    queue = e.queue_consumer("shaped", "queue", name=NAME)
    for n in range(8):
        message = received(stream)
        if n == 5:
            stream.acknowledge_cumulative(message)
    queue.acknowledge([received(queue) for _ in range(10)][::2])
    e.admin.split_segment("shaped", 0)
    send(producer, 16, 30)
    return [producer, stream, queue]


def transacted(e: engine.Engine) -> list[Any]:
    """Transactions that were committed and aborted."""
    e.admin.create_topic("transacted")
    subscribe(e, "transacted")
    producer = e.producer("transacted")
    send(producer, 0, 5)
    with e.transaction() as transaction:
        send(producer, 5, 5, transaction=transaction)
    transaction = e.transaction()
    send(producer, 10, 5, transaction=transaction)
    transaction.abort()
    send(producer, 15, 5)
    return [producer]


def received(consumer: Any) -> engine.Message:
    message = consumer.receive(timeout=60.0)
    assert message is not None
    return message


def wait_until_quiet(e: engine.Engine, directory: Path) -> None:
    """Until the file of each active segment says that it is durable to its end."""
    deadline = time.monotonic() + QUIET_S_MAX
    for topic in TOPICS:
        for ident, segment in e.admin.get_stats(topic)["segments"].items():
            while segment["state"] == "ACTIVE" and witnessed(directory, topic, ident) < segment["nextOffset"]:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def witnessed(directory: Path, topic: str, segment: str) -> int:
    (folder,) = directory.glob(f"segments/*/*/{topic}/*-{segment}")
    last = max(folder.glob("*.log"), key=lambda path: int(path.stem))
    witness = Header.unpack(last.read_bytes()[:HEADER_SIZE_MAX], str(last)).witness
    assert witness is not None
    return witness.durable_offset


if __name__ == "__main__":
    main(*sys.argv[1:])
