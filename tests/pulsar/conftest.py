"""A broker with a port, and Apache Pulsar's client connected to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import engine
from tests.chaos.conftest import no_server_stays

__all__ = ["no_server_stays"]  # the fixture, for tests here as well

CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
WAIT_MS = 60_000  # for what has to come
QUIET_MS = 300  # for what must not
EARLIEST = pulsar.InitialPosition.Earliest

_numbers = itertools.count(1)


def service_url(served: engine.Engine) -> str:
    """Of a broker, for Apache Pulsar's client."""
    return f"pulsar://{served.service_url.partition('://')[2]}"


def connect(url: str, timeout_s: int = 60, **options: Any) -> pulsar.Client:
    """A client that logs errors alone."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=timeout_s, **options)


@pytest.fixture(scope="module")
def served() -> Iterator[engine.Engine]:
    with engine.open(":memory:", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened:
        yield opened


@pytest.fixture
def client(served: engine.Engine) -> Iterator[pulsar.Client]:
    made = connect(service_url(served))
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_numbers)}"


@pytest.fixture
def received() -> Callable[..., list[Any]]:
    return take


def place_of(ident: Any) -> tuple[int, int]:
    """(segment, offset) that an id of the client names. The offset is -1 where the place is not known, as that of a
    message which was stored before and is sent again, whatever its index in the batch.
    """
    known = ident.entry_id() >= 0
    return ident.ledger_id(), ident.entry_id() + max(ident.batch_index(), 0) if known else -1


def take(consumer: Any, count: int) -> list[Any]:
    """So many messages, in the order of their coming."""
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def is_quiet(consumer: Any) -> bool:
    """Whether nothing more comes."""
    try:
        consumer.receive(QUIET_MS)
    except pulsar.Timeout:
        return True
    return False


def close_behind_letters(served: engine.Engine, consumer: Any) -> None:
    """A consumer that has sent a dead letter, once it has acknowledged the message.

    Apache Pulsar's client crashes where it is closed before: six programs that tried it 150 times did.
    """
    while served.admin.get_stats(consumer.topic())["subscriptions"][consumer.subscription_name()]["backlog"]:
        time.sleep(0.01)
    consumer.close()
