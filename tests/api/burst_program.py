"""Writes, reads and acknowledges with every kind of reader, and is killed.

usage: python -m tests.api.burst_program DIR DURABILITY
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import engine

MESSAGES = 2000


def main(directory: str, durability: str) -> None:
    """Prints nothing; the checkpoint is left in DIR/checkpoint."""
    e = engine.open(directory, shared=False)
    e.admin.create_topic("orders", durability=durability)
    stream = e.stream_consumer("orders", "stream", name="killed", initial_position="earliest")
    queue = e.queue_consumer("orders", "queue", initial_position="earliest")
    e.admin.create_subscription("orders", "behind", initial_position="earliest")
    reader = e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest())
    with e.producer("orders", name="p") as producer:
        for first in range(0, MESSAGES, 20):
            producer.send_batch([b"%d" % i for i in range(first, first + 20)], keys=[b"k"] * 20)
            producer.flush()
    for consumer in (stream, queue, reader):
        received = 0
        while received < MESSAGES:
            batch = consumer.receive_batch(max_messages=1000, timeout=60)
            received += len(batch)
            if consumer is stream:
                stream.acknowledge_cumulative(batch)
            elif consumer is queue:
                queue.acknowledge(batch)
    Path(directory, "checkpoint").write_bytes(reader.checkpoint().to_bytes())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
