"""Writes a small data directory with the API that all builds have had, to be run in the tree of an old revision.

    git archive REVISION | tar x -C /tmp/old && cd /tmp/old && python setup.py -q build_ext --inplace
    PYTHONPATH=src python write_early_directory.py /tmp/out killed       # or: closed

makes `/tmp/out/data` and `/tmp/out/expected.json`: of each topic the messages that were acknowledged to their sender,
what its subscription has acknowledged, and where its named producer stands. Packed as `early-REVISION-ENDING.tar.xz`
with `pack()` of write_golden_directory.py. What is there is never written again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import engine

TOPICS = ("plain", "split", "merged", "queue", "transacted")


def main(out: Path, ending: str) -> None:
    """One directory."""
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {topic: {"sent": [], "acknowledged": [], "kind": "stream"} for topic in TOPICS}
    found["queue"]["kind"] = "queue"
    e = engine.open(str(out / "data"), config={"scalable_topic_auto_scale_enabled": False})
    for topic in TOPICS:
        e.admin.create_topic(topic, segments=2 if topic == "merged" else 1)
        e.admin.create_subscription(topic, "readers", initial_position="earliest")
    producers = {topic: e.producer(topic, name=f"named-{topic}") for topic in TOPICS}

    def send(topic: str, label: str, count: int, known: bool = True, **more: Any) -> None:
        for n in range(count):
            key, value = f"key-{n % 5}", f"{topic} {label} {n} " + "." * 200
            producers[topic].send(value.encode(), key=key, properties={"n": str(n)}, **more)
            if known:
                found[topic]["sent"].append([key, value])

    for topic in TOPICS:
        send(topic, "first", 40)
    e.admin.split_segment("split", 0)
    e.admin.merge_segments("merged", 0, 1)
    for topic in TOPICS:
        send(topic, "second", 20)
    with e.transaction() as t:
        send("transacted", "committed", 10, transaction=t)
    t = e.transaction()
    send("transacted", "aborted", 10, known=False, transaction=t)
    t.abort()
    send("transacted", "last", 5)
    for topic in ("plain", "queue"):
        acknowledge(e, topic, found[topic])
    for topic, p in producers.items():
        found[topic]["last_sequence_id"] = p.last_sequence_id
    (out / "expected.json").write_text(json.dumps(found))
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    e.close()


def acknowledge(e: Any, topic: str, facts: dict[str, Any]) -> None:
    """Some of it: the first 15, or of 30 two in three."""
    if facts["kind"] == "stream":
        with e.stream_consumer(topic, "readers", name="r") as c:
            received = [c.receive(timeout=20.0) for _ in range(15)]
            c.acknowledge_cumulative(received[-1])
            facts["acknowledged"] = [bytes(m.value).decode() for m in received]
        return
    with e.queue_consumer(topic, "readers", name="r") as c:
        received = [c.receive(timeout=20.0) for _ in range(30)]
        for n, message in enumerate(received):
            if n % 3:
                c.acknowledge(message)
                facts["acknowledged"].append(bytes(message.value).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
