"""P21: Apache Pulsar's own client of Python publishes to a broker of ours, consumes from it, acknowledges.

Its producer and consumer are set up as in the comparison with other brokers, whose rows of the reference
implementation are the other side (`bars.py --peers`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, ClassVar

from processes import Server, server
from support import Rows, rows, sized

try:
    import pulsar
except ImportError:
    pulsar = None

RECEIVER_QUEUE = 10_000
BATCH_MESSAGES, BATCH_DELAY_MS = 1000, 5
TIMEOUT_S = 60
_numbers = itertools.count(1)


def connect(url: str) -> Any:
    """A client that logs errors alone. Raises NotImplementedError where it is not installed."""
    if pulsar is None:
        raise NotImplementedError("pulsar-client is not installed")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    address = f"pulsar://{url.partition('://')[2]}"
    return pulsar.Client(address, logger=quiet, operation_timeout_seconds=TIMEOUT_S)


def publish(client: Any, topic: str, sample: Rows) -> None:
    """Every row, in batches of the client's, all acknowledged in the end. Raises RuntimeError."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=BATCH_MESSAGES,
        batching_max_publish_delay_ms=BATCH_DELAY_MS, block_if_queue_full=True,
    )  # fmt: skip
    refused: list[Any] = []

    def sent(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            refused.append(result)

    for key, value in sample:
        producer.send_async(value, sent, partition_key=key.decode())
    producer.flush()
    producer.close()
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(sample)} messages were refused: {refused[0]}")


def consume(client: Any, topic: str, count: int) -> None:
    """So many messages of a topic, from its first on, each batch acknowledged."""
    consumer = client.subscribe(
        topic, "s", receiver_queue_size=RECEIVER_QUEUE, initial_position=pulsar.InitialPosition.Earliest,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(BATCH_MESSAGES, -1, BATCH_DELAY_MS),
    )  # fmt: skip
    got, until = 0, time.monotonic() + TIMEOUT_S
    while got < count:
        messages = consumer.batch_receive()
        got += len(messages)
        if messages:
            consumer.acknowledge_cumulative(messages[-1])
        elif time.monotonic() > until:
            raise TimeoutError(f"{got} of {count} messages came")
    consumer.close()


def timed(broker: Server, name: str, count: int, work: Callable[[], None]) -> dict[str, float]:
    """Of work on `count` messages: messages per second, and the server's microseconds of a message."""
    began, used = time.perf_counter(), broker.processor_s()
    work()
    seconds, used = time.perf_counter() - began, broker.processor_s() - used
    return {f"pulsar {name}": count / seconds, f"pulsar {name} us": used / count * 1e6}


def published_and_consumed(broker: Server, sample: Rows) -> dict[str, float]:
    """Messages per second, and the server's microseconds of processor time a message; {} where there is no client."""
    try:
        client = connect(broker.url)
    except NotImplementedError:
        return {}
    topic, count = f"persistent://public/default/bench-{next(_numbers)}", len(sample)
    try:
        publish(client, f"{topic}-warm", sample[: count // 10])
        published = timed(broker, "publish", count, lambda: publish(client, topic, sample))
        return published | timed(broker, "consume", count, lambda: consume(client, topic, count))
    finally:
        client.close()


class PulsarClient:
    """P21: rates, and what they cost the server."""

    timeout = 600
    params: ClassVar = ["pulsar publish", "pulsar consume"]
    param_names: ClassVar = ["what"]

    def setup(self, _: str) -> None:
        with server() as broker:
            self.figures = published_and_consumed(broker, rows(sized(200_000, 300), 100))
        if not self.figures:
            raise NotImplementedError("pulsar-client is not installed")

    def track_rate(self, what: str) -> float:
        return self.figures[what]

    def track_server_us(self, what: str) -> float:
        return self.figures[f"{what} us"]

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_server_us.unit = "us"  # type: ignore[attr-defined]
