"""One life in a relaxed mode: sends, and every kind of reader gets and acknowledges all of it; then waits to be killed.

    python -m tests.power.relaxed_program DATA MODE LIFE COUNT CHECKPOINT

Readers go on where they stood; CHECKPOINT is where the one without a subscription did, in hexadecimal. Each must get
this life's messages, all and once, and nothing else. Says the new checkpoint when all is acknowledged.
"""

from __future__ import annotations

import sys
from typing import Any

import engine

CONFIG = {"sync_interval_ms": 60_000, "scalable_topic_auto_scale_enabled": False, "log_cache_size": 1}
TOPIC = "relaxed"
RECEIVE_S_MAX = 60.0  # only a failure waits for so long


def main(directory: str, mode: str, life: str, count: str, checkpoint: str) -> None:
    """Prints the checkpoint and goes on until it is killed."""
    e = engine.open(directory, config=CONFIG)
    if life == "0":
        e.admin.create_topic(TOPIC, durability=mode)
    readers: dict[str, list[Any]] = {
        "exclusive": [e.stream_consumer(TOPIC, "exclusive", name="one", initial_position="earliest")],
        "shared": [e.stream_consumer(TOPIC, "shared", name=name, initial_position="earliest") for name in "ab"],
        "queue": [e.queue_consumer(TOPIC, "queue", name=name, initial_position="earliest") for name in "ab"],
    }
    start = engine.Checkpoint.from_bytes(bytes.fromhex(checkpoint)) if checkpoint else engine.Checkpoint.earliest()
    reader = e.checkpoint_consumer(TOPIC, start=start)
    values = [f"{life}-{n}".encode() for n in range(int(count))]
    with e.producer(TOPIC, name="p") as producer:
        for n, value in enumerate(values):
            producer.send_nowait(value, key=b"%d" % (n % 11))
        producer.flush()
    for kind, consumers in {**readers, "checkpoint": [reader]}.items():
        found = received(kind, consumers, len(values))
        assert sorted(found) == sorted(values), f"{kind}: {len(set(found) & set(values))} of {len(values)}, {found[:3]}"
    backlogs = {name: facts["backlog"] for name, facts in e.admin.get_stats(TOPIC)["subscriptions"].items()}
    assert not any(backlogs.values()), backlogs
    print(reader.checkpoint().to_bytes().hex(), flush=True)
    sys.stdin.read()


def received(kind: str, consumers: list[Any], wanted: int) -> list[bytes]:
    """So many messages, whichever of these gets each, acknowledged."""
    found: list[bytes] = []
    turns = 0
    while len(found) < wanted:
        assert turns < RECEIVE_S_MAX / 0.05 * len(consumers), f"{kind}: {len(found)} of {wanted} came"
        consumer = consumers[turns % len(consumers)]
        turns += 1
        batch = consumer.receive_batch(max_messages=wanted, timeout=0.05)
        found += batch.values
        if len(batch) and kind == "queue":
            consumer.acknowledge(batch)
        elif len(batch) and kind != "checkpoint":
            consumer.acknowledge_cumulative(batch)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
