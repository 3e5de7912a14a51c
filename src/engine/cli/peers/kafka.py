"""Kafka: librdkafka's producer with `acks=all`; a consumer that commits the last of each thousand."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from engine.cli.peers.peer import Rows

READ = 1_000
TIMEOUT_S = 30.0


class KafkaTopic:
    """A topic of one partition."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic, self._servers = topic, url.partition("://")[2].rstrip("/")
        self._admin: Any = AdminClient(self._settings())
        _wait(self._admin.create_topics([NewTopic(topic, 1, 1)])[topic])
        self._producer: Any = Producer(self._settings() | {"acks": "all", "linger.ms": 5, "batch.size": 512 * 1024})
        self._quick: Any = Producer(self._settings() | {"acks": "all", "linger.ms": 0})

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self._servers, "socket.timeout.ms": int(TIMEOUT_S * 1e3), "log_level": 0}

    def publish(self, rows: Rows) -> None:
        self._send(self._producer, rows)

    def publish_each(self, rows: Rows) -> None:
        for row in rows:
            self._send(self._quick, [row])

    def _send(self, producer: Any, rows: Rows) -> None:
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        for key, value in rows:
            while True:
                try:
                    producer.produce(self._topic, value, key, 0, on_delivery=delivered)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.05)
        left = producer.flush(TIMEOUT_S)
        if left or failed:
            raise OSError(f"Kafka: {left} messages were not delivered, {len(failed)} refused: {failed[:1]}")

    def consume(self, count: int) -> int:
        consumer: Any = Consumer(self._settings() | {"group.id": self._topic, "enable.auto.commit": False})
        size = got = 0
        try:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            while got < count:
                messages = consumer.consume(min(READ, count - got), TIMEOUT_S)
                errors = [message.error() for message in messages if message.error()]
                if errors or not messages:
                    raise OSError(f"Kafka gave {got} of {count} messages: {errors[:1]}")
                got += len(messages)
                size += sum(len(message.value()) for message in messages)
                consumer.commit(messages[-1], asynchronous=got < count)
        except KafkaException as e:
            raise OSError(f"Kafka: {e.args[0].str()}") from e
        finally:
            consumer.close()
        return size

    def close(self) -> None:
        _wait(self._admin.delete_topics([self._topic])[self._topic])


def _wait(change: Future[None]) -> None:
    try:
        change.result(TIMEOUT_S)
    except KafkaException as e:
        raise OSError(f"Kafka: {e.args[0].str()}") from e
    except TimeoutError as e:
        raise OSError(f"Kafka: no answer within {TIMEOUT_S:g} s") from e


connected = KafkaTopic
