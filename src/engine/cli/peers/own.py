"""Engine itself, through the blocking client: `send_nowait`, `send`, a stream consumer that looks at each message."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from engine.cli.connection import connect
from engine.cli.peers.peer import Rows

READ = 10_000
TIMEOUT_S = 30.0


class OwnTopic:
    """A topic of one segment; `opened` is closed by its owner."""

    def __init__(self, opened: Any, topic: str) -> None:
        self._client, self._topic = opened, topic
        opened.admin.create_topic(topic)
        self._producer = opened.producer(topic)

    def publish(self, rows: Rows) -> None:
        send = self._producer.send_nowait
        for key, value in rows:
            send(value, key=key)
        self._producer.flush()

    def publish_each(self, rows: Rows) -> None:
        for key, value in rows:
            self._producer.send(value, key=key)

    def consume(self, count: int) -> int:
        size = got = 0
        with self._client.stream_consumer(self._topic, "engine", initial_position="earliest") as consumer:
            while got < count:
                batch = consumer.receive_batch(max_messages=READ, timeout=TIMEOUT_S)
                if not len(batch):
                    raise OSError(f"the broker gave {got} of {count} messages")
                got += len(batch)
                size += sum(len(message.value) for message in batch)
                consumer.acknowledge_cumulative(batch)
        return size

    def close(self) -> None:
        self._producer.close()
        self._client.admin.delete_topic(self._topic)


class _Connected(OwnTopic):
    """Another broker of ours, with a client of its own, and with the token that the command was given."""

    def __init__(self, url: str, topic: str) -> None:
        with ExitStack() as stack:
            super().__init__(stack.enter_context(connect(url, None)), topic)
            self._ended = stack.pop_all()

    def close(self) -> None:
        with self._ended:
            super().close()


connected = _Connected
