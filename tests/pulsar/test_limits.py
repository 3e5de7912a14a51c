"""Rates for clients of Apache Pulsar: slowed and never dropped, and other topics on the same connection go on."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import engine
from engine.broker.segment.limited import UNPAID_BYTES
from tests.pulsar.conftest import EARLIEST, QUIET_MS, WAIT_MS, connect, is_quiet, service_url

BLOB = bytes(100_000)
# Each leaves what a test sends minutes to wait, but for the first of it.
SLOW = [{"bytes_per_s": 1_000}, {"messages_per_s": 1}]
BEYOND = 100  # messages, of which the first few come at once
PLAIN = {"batching_enabled": False, "compression_type": pulsar.CompressionType.NONE}

_tenants = itertools.count(1)
Limit = Callable[..., None]


@pytest.fixture
def tenant(served: engine.Engine) -> Iterator[str]:
    name = f"slow{next(_tenants)}"
    served.admin.create_tenant(name)
    yield name
    if name in served.admin.list_limits():
        served.admin.remove_limits(name)


@pytest.fixture
def slow(tenant: str) -> str:
    return f"persistent://{tenant}/default/t"


class Receipts:
    """Of what is sent without waiting, as they come."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._come: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.sent = 0

    def send(self, value: bytes) -> None:
        number = self.sent
        self.sent += 1
        self._producer.send_async(value, lambda result, _: self._come.put((number, result)))

    def take(self, count: int) -> list[tuple[int, Any]]:
        return [self._come.get(timeout=WAIT_MS / 1000) for _ in range(count)]

    @property
    def come(self) -> int:
        return self._come.qsize()


def values(client: Any, topic: str, count: int) -> list[bytes]:
    """All that a topic has; nothing came twice."""
    consumer = client.subscribe(topic, "all", initial_position=EARLIEST)
    found = [consumer.receive(WAIT_MS).data() for _ in range(count)]
    assert is_quiet(consumer)
    return found


def here(consumer: Any) -> Iterator[bytes]:
    """What has come."""
    with suppress(pulsar.Timeout):
        while True:
            yield consumer.receive(QUIET_MS).data()


def unlimited(client: Any, topic: str) -> None:
    """Another topic is written, read and acknowledged, over the same connection."""
    producer = client.create_producer(topic, **PLAIN)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for number in range(50):
        producer.send(b"%d" % number)
        message = consumer.receive(WAIT_MS)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    consumer.close()
    producer.close()


@pytest.mark.parametrize("sum_", ["", "total_"], ids=["each", "sum"])
@pytest.mark.parametrize("rate", SLOW, ids=["bytes", "messages"])
def test_a_producer_above_its_rate_is_slowed_and_nothing_else_on_its_connection(
    served: engine.Engine, tenant: str, slow: str, topic: str, rate: dict[str, int], sum_: str
) -> None:
    served.admin.set_limits(tenant, {f"{sum_}publish_{name}": value for name, value in rate.items()})
    client = connect(service_url(served))
    receipts = Receipts(client.create_producer(slow, send_timeout_millis=0, **PLAIN))
    sent = [b"%d" % number + bytes(5_000) for number in range(BEYOND)]
    for value in sent:
        receipts.send(value)
    unlimited(client, topic)
    assert receipts.come < BEYOND
    served.admin.remove_limits(tenant)
    assert receipts.take(BEYOND) == [(number, pulsar.Result.Ok) for number in range(BEYOND)]
    assert values(client, slow, BEYOND) == sent
    client.close()


def test_a_producer_that_sends_far_more_is_not_read_from_and_loses_nothing(
    served: engine.Engine, tenant: str, slow: str, topic: str
) -> None:
    served.admin.set_limits(tenant, {"publish_bytes_per_s": 1_000})
    client = connect(service_url(served))
    other = client.create_producer(topic, send_timeout_millis=0, **PLAIN)
    receipts = Receipts(client.create_producer(slow, send_timeout_millis=0, **PLAIN))
    count = 2 * UNPAID_BYTES // len(BLOB) + 40  # more than the system holds for a connection
    for _ in range(count):
        receipts.send(BLOB)
    behind = Receipts(other)
    behind.send(b"x")
    assert (receipts.come, behind.come) == (0, 0)
    served.admin.remove_limits(tenant)
    assert receipts.take(count) == [(number, pulsar.Result.Ok) for number in range(count)]
    behind.take(1)
    assert values(client, slow, count) == [BLOB] * count
    client.close()


@pytest.mark.parametrize("sum_", ["", "total_"], ids=["each", "sum"])
@pytest.mark.parametrize("rate", SLOW, ids=["bytes", "messages"])
@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
)
def test_a_consumer_above_its_rate_is_slowed_and_nothing_else_on_its_connection(
    served: engine.Engine, tenant: str, slow: str, topic: str, kind: Any, rate: dict[str, int], sum_: str
) -> None:
    client = connect(service_url(served))
    producer = client.create_producer(slow, **PLAIN)
    sent = [b"%d" % number + bytes(5_000) for number in range(BEYOND)]
    for value in sent:
        producer.send(value)
    served.admin.set_limits(tenant, {f"{sum_}dispatch_{name}": value for name, value in rate.items()})
    consumer = client.subscribe(slow, "s", consumer_type=kind, initial_position=EARLIEST)
    unlimited(client, topic)
    first = list(here(consumer))
    assert len(first) < BEYOND
    served.admin.remove_limits(tenant)
    rest = [consumer.receive(WAIT_MS).data() for _ in range(BEYOND - len(first))]
    assert sorted(first + rest) == sorted(sent)
    assert is_quiet(consumer)
    client.close()
