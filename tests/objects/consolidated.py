"""A broker on etcd and a real store of objects, all of whose messages are in rolled files there."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.cli.demo_servers import free_ports
from engine.sync import Client
from tests.cli.cli_server import Server, start_server, stop_server
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.programs import environment
from tests.kit.s3_server import S3Server

OBJECTS = "s3://engine/direct"
WAIT_S_MAX = 60.0
MESSAGES, SIZE = 160, 64 * 1024
WRITTEN = [random.Random(n).randbytes(SIZE) for n in range(MESSAGES)]


@contextmanager
def consolidated(store: S3Server, etcd: Etcd, directory: Path) -> Iterator[Server]:
    """`engine serve` with the topic "orders" of one segment. It gives no paths away."""
    [port] = free_ports(1)
    settings = environment(
        ENGINE_SERVICE_URL=f"engine://127.0.0.1:{port}",
        ENGINE_METADATA=etcd.url(new_prefix()),
        ENGINE_OBJECTS=OBJECTS,
        ENGINE_OBJECT_FILE_AGE="1",
        ENGINE_SHORT_CIRCUIT_READS="false",
        **store.environment,
    )
    started = start_server(
        directory / "data", "--cluster", "direct", "--listen", f"127.0.0.1:{port}", environment=settings
    )
    try:
        with pytest.MonkeyPatch.context() as patch, Client(started.url, objects=OBJECTS) as client:
            with_credentials(patch, store)
            client.admin.create_topic("orders")
            with client.producer("orders") as producer:
                for value in WRITTEN:
                    producer.send_nowait(value, key="k")
                producer.flush()
            deadline, sent = time.monotonic() + WAIT_S_MAX, 1.0
            while sent:  # until the broker names objects for all of it
                assert time.monotonic() < deadline
                time.sleep(0.2)
                before = counter(client, "out_messages_total")
                assert read(client) == WRITTEN, "other messages, or another order"
                sent = counter(client, "out_messages_total") - before
        yield started
    finally:
        started.process.kill()
        stop_server(started)


def with_credentials(patch: pytest.MonkeyPatch, store: S3Server) -> None:
    """This process has those of the store."""
    for name, value in store.environment.items():
        patch.setenv(name, value)


def counter(client: Client, name: str) -> float:
    """The sum of a metric of the broker over all labels."""
    found = re.findall(rf"^engine_{name}(?:{{[^\n]*}})? ([\d.e+]+)$", client.admin.get_metrics(), re.MULTILINE)
    return sum(map(float, found))


def read(client: Client, **options: Any) -> list[bytes]:
    """All values, as a range reader gets them."""
    with client.range_reader("orders", {0: (0, MESSAGES)}, **options) as reader:
        return [bytes(message.value) for batch in reader.batches() for message in batch]
