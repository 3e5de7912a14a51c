"""Writes a data directory of every kind of state, killed or closed, and what is to be found in it.

    python tests/golden/directories/write_golden_directory.py 0.1.0

makes `0.1.0-killed.tar.xz` and `0.1.0-closed.tar.xz` beside this file: the directory as `data`, and `expected.json`.
Run it for a *new* format only, under a new name: what is there stays as it is, and every later build opens it
(`test_golden_directories.py`).

The JSON comes from what was sent, acknowledged and answered, never from reading it back.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import engine
from engine.broker import server
from engine.limits import KIB

HERE = Path(__file__).parent
CONFIG = {"retention_time": None, "scalable_topic_auto_scale_enabled": False}
KEPT = "golden/kept"  # a namespace that keeps its messages and says how durable they are
FAR_MS = 4_102_444_800_000  # 2100
EVENT_MS = 1_700_000_000_000
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}


class Story:
    """What was done, topic by topic."""

    def __init__(self, e: engine.Engine) -> None:
        self.engine = e
        self.topics: dict[str, dict[str, Any]] = {}

    def create(self, topic: str, **options: Any) -> None:
        """A topic, with what is known of it."""
        self.engine.admin.create_topic(topic, **options)
        self.topics[topic] = {"messages": [], "subscriptions": {}, "producers": {}}

    def send(
        self,
        p: engine.Producer,
        topic: str,
        label: str,
        key: str | None,
        *,
        size: int = 300,
        known: bool = True,
        **more: Any,
    ) -> None:
        """One message, waited for. `known`: readers will get it."""
        sent = p.send(value_of(label, size), key=key, **more)
        more.pop("transaction", None)
        if known:
            facts = {"label": label, "size": size, "key": key, "segment": sent.segment_id, "offset": sent.offset}
            self.topics[topic]["messages"].append(facts | more)

    def subscribe(self, topic: str, subscription: str, kind: str) -> None:
        """A subscription that has acknowledged nothing."""
        self.engine.admin.create_subscription(topic, subscription, initial_position="earliest")
        self.topics[topic]["subscriptions"][subscription] = {"kind": kind, "consumer": "reader", "acknowledged": []}

    def acknowledged(self, topic: str, subscription: str, messages: list[engine.Message]) -> None:
        """It has done with these."""
        done = self.topics[topic]["subscriptions"][subscription]["acknowledged"]
        done += [[m.id.segment_id, m.id.offset] for m in messages]

    def stream(self, topic: str, subscription: str, count: int) -> engine.StreamConsumer:
        """A stream subscription with `count` acknowledged cumulatively, and one more received."""
        self.subscribe(topic, subscription, "stream")
        c = self.engine.stream_consumer(topic, subscription, name="reader")
        for _ in range(count):  # one by one: children come when their parents are acknowledged
            message = receive(c)
            c.acknowledge_cumulative(message)
            self.acknowledged(topic, subscription, [message])
        receive(c)
        return c

    def queue(self, topic: str, subscription: str, count: int, holes: int = 3) -> engine.QueueConsumer:
        """A queue subscription: of `count` received, every `holes`-th is not acknowledged."""
        self.subscribe(topic, subscription, "queue")
        c = self.engine.queue_consumer(topic, subscription, name="reader")
        received = [receive(c) for _ in range(count)]
        done = [m for i, m in enumerate(received) if i % holes]
        c.acknowledge(done)
        self.acknowledged(topic, subscription, done)
        return c


def receive(c: Any) -> engine.Message:
    """The next message, which is there."""
    message = c.receive(timeout=20.0)
    assert message is not None, c
    return message


def value_of(label: str, size: int) -> bytes:
    """The message that the label stands for."""
    return (label.encode() * (size // len(label) + 1))[:size]


def write(scratch: Path, ending: str) -> None:
    """Write it all; then close, or be killed."""
    configured = server.storage_config
    server.storage_config = lambda *a, **kw: dataclasses.replace(configured(*a, **kw), file_size_max=8 * KIB)
    e = engine.open(scratch / "data", config=CONFIG)
    story = Story(e)
    held = [plain(story), *compressed(story), *shaped(story), durable(story), numbered(story), delayed(story)]
    schemas(story)
    expected = {"topics": story.topics, "config": CONFIG, "namespace": namespace(story)}
    held += transactions(story, expected)
    for topic, facts in story.topics.items():
        facts["metadata"] = e.admin.get_metadata(topic)
    e.admin.create_topic("gone")
    with e.producer("gone") as p:
        p.send(b"deleted with its topic")
    e.admin.delete_topic("gone")
    open_transaction(story, held)
    (scratch / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for each in held:
        each.close()
    e.close()


def plain(story: Story) -> Any:
    """Keys, properties and event times over several files; three kinds of subscriptions."""
    story.create("plain", properties={"team": "golden", "tier": "1"})
    with story.engine.producer("plain") as p:
        for n in range(60):
            more: dict[str, Any] = {"event_time": EVENT_MS + n} if n % 3 == 0 else {}
            if n % 4 == 0:
                more["properties"] = {"n": str(n), "ä": "ü"}
            story.send(p, "plain", f"plain {n} ", f"key-{n % 7}" if n % 5 else None, **more)
    story.subscribe("plain", "untouched", "stream")
    story.stream("plain", "half", 30).close()
    story.queue("plain", "holes", 40).close()
    return story.stream("plain", "attached", 20)  # its consumer is there at the end


def compressed(story: Story) -> list[Any]:
    """Entries of many messages, each compression; the last file is open at the end."""
    for compression in ("lz4", "zstd", "none"):
        topic = f"batches-{compression}"
        story.create(topic, key_hash="murmur3", entry_buckets=1)
        known = story.topics[topic]["messages"]
        with story.engine.producer(topic, compression=compression) as p:
            for batch in range(4):
                labels = [f"{topic} {batch} {n} " for n in range(25)]
                keys = [f"key-{n % 5}" for n in range(25)]
                p.send_batch([value_of(label, 200) for label in labels], keys)
                p.flush()
                known += [
                    {"label": x, "size": 200, "key": k, "segment": 0, "offset": 25 * batch + i}
                    for i, (x, k) in enumerate(zip(labels, keys, strict=True))
                ]
        story.queue(topic, "holes", 60, holes=7).close()
        story.stream(topic, "half", 40).close()
    return []


def shaped(story: Story) -> list[Any]:
    """Two segments; a split, a merge, a rebucket, each with messages before and behind it."""
    e, topic = story.engine, "shaped"
    story.create(topic, segments=2)
    story.subscribe(topic, "untouched", "stream")
    story.subscribe(topic, "untouched-queue", "queue")

    def send(round_: str) -> None:
        with e.producer(topic) as p:
            for n in range(24):
                story.send(p, topic, f"{round_} {n} ", f"key-{n}", size=500)

    def active() -> list[int]:
        segments = e.admin.get_metadata(topic)["segments"].values()
        alive = [s for s in segments if s["state"] == "ACTIVE"]
        return [s["segmentId"] for s in sorted(alive, key=lambda s: s["hashRange"]["start"])]

    send("first")
    e.admin.split_segment(topic, active()[0])
    send("split")
    e.admin.merge_segments(topic, *active()[1:])
    send("merged")
    c = story.stream(topic, "some", 50)
    e.admin.rebucket_segment(topic, active()[0], 4)
    send("rebucketed")
    q = story.queue(topic, "holes", 60)
    with e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as reader:
        seen = [receive(reader) for _ in range(40)]
        place = reader.checkpoint().to_bytes().hex()
    story.topics[topic]["checkpoint"] = {"bytes": place, "seen": [[m.id.segment_id, m.id.offset] for m in seen]}
    return [c, q]


def durable(story: Story) -> Any:
    """The other modes, one of them from the namespace's policies."""
    admin = story.engine.admin
    admin.set_namespace_policies(KEPT, {"retention_time_s": -1, "retention_size_bytes": -1, "durability": "interval"})
    admin.set_namespace_auto_scale_policy(KEPT, {"max_segments": 3})
    story.create(f"{KEPT}/interval")
    story.create("os", durability="os")
    admin.set_auto_scale_policy("os", {"max_segments": 5, "split_cooldown": 77.0})
    for topic in (f"{KEPT}/interval", "os"):
        with story.engine.producer(topic) as p:
            for n in range(40):
                story.send(p, topic, f"{topic} {n} ", f"key-{n % 3}")
        story.stream(topic, "half", 20).close()
    return story.stream("os", "attached", 10)


def namespace(story: Story) -> dict[str, Any]:
    """What is said of the namespace, and of one topic."""
    admin = story.engine.admin
    return {
        "name": KEPT,
        "policies": admin.get_namespace_policies(KEPT),
        "auto_scale": admin.get_namespace_auto_scale_policy(KEPT),
        "topic_auto_scale": {"os": admin.get_auto_scale_policy("os")},
    }


def numbered(story: Story) -> Any:
    """Named producers with sequence ids of their own: one that is closed and one that is not, over a split."""
    topic = "numbered"
    story.create(topic)
    for name in ("first", "second"):
        story.topics[topic]["producers"][name] = {"sequences": []}
    story.subscribe(topic, "untouched", "queue")
    first, second = (story.engine.producer(topic, name=name) for name in ("first", "second"))

    def send(p: engine.Producer, numbers: range) -> None:
        for n in numbers:
            story.send(p, topic, f"{p.name} {n} ", f"key-{n % 11}", sequence_id=n)
            story.topics[topic]["producers"][p.name]["sequences"].append(n)

    send(first, range(0, 90, 3))
    send(second, range(20))
    story.engine.admin.split_segment(topic, 0)
    send(first, range(90, 150, 3))
    first.close()
    send(second, range(20, 40))
    return second


def delayed(story: Story) -> Any:
    """Some that have become due long before anybody reads this, and some that have not."""
    topic = "delayed"
    story.create(topic)
    story.subscribe(topic, "untouched", "queue")
    p = story.engine.producer(topic)
    soon = time.time_ns() // 1_000_000 + 5_000
    for n in range(30):
        when = {0: {}, 1: {"deliver_at": soon + n}, 2: {"deliver_at": FAR_MS + n}}[n % 3]
        story.send(p, topic, f"delayed {n} ", f"key-{n % 4}", **when)
    story.queue(topic, "holes", 10).close()
    return p


def schemas(story: Story) -> None:
    """One topic of each kind of schema; the values are bytes in the log."""
    kinds = {
        "schema-avro": (engine.Schema.avro(AVRO), [{"number": n} for n in range(10)]),
        "schema-json": (engine.Schema.json(), [{"number": n} for n in range(10)]),
        "schema-string": (engine.Schema.string(), [f"number {n}" for n in range(10)]),
    }
    for topic, (schema, values) in kinds.items():
        story.create(topic)
        story.subscribe(topic, "untouched", "stream")
        story.topics[topic]["values"] = values
        with story.engine.producer(topic, schema=schema) as p:
            for value in values:
                p.send(value, key="k")


def transactions(story: Story, expected: dict[str, Any]) -> list[Any]:
    """Committed, aborted, of several attempts; acknowledgements in them likewise."""
    e, topics = story.engine, ("transacted", "transacted-too")
    for topic in topics:
        story.create(topic, segments=2)
        story.subscribe(topic, "untouched", "stream")
    producers = {topic: e.producer(topic) for topic in topics}

    def send(kind: str, known: bool, count: int = 8, **more: Any) -> None:
        for n in range(count):
            for topic, p in producers.items():
                story.send(p, topic, f"{kind} {n} ", f"key-{n % 5}", known=known, **more)

    send("before", True)
    with e.transaction() as txn:
        send("committed", True, transaction=txn)
    txn = e.transaction()
    send("aborted", False, transaction=txn)
    txn.abort()
    send("between", True)
    story.subscribe("transacted", "acks", "queue")
    c = e.queue_consumer("transacted", "acks", name="reader")
    received = [receive(c) for _ in range(12)]
    with e.transaction() as txn:
        c.acknowledge(received[:4], transaction=txn)
    story.acknowledged("transacted", "acks", received[:4])
    txn = e.transaction()
    c.acknowledge(received[4:8], transaction=txn)
    txn.abort()
    with e.transaction(name="job") as job:
        for attempt, counts in (("part.first", False), ("part.second", True)):
            with e.join_transaction(job.id, attempt) as part:
                send(attempt, counts, transaction=part)
        job.commit(accepted=["part.second"])
    expected["committed_transaction"] = job.name
    return [c, *producers.values()]


def open_transaction(story: Story, held: list[Any]) -> None:
    """The last thing: one whose commit was the last word, and one that is open for two seconds more."""
    producers = (each for each in held if isinstance(each, engine.Producer))
    p = next(each for each in producers if each.topic.endswith("/transacted"))
    with story.engine.transaction() as txn:
        for n in range(5):
            story.send(p, "transacted", f"late {n} ", f"key-{n}", transaction=txn)
    txn = story.engine.transaction(timeout=2.0, name="left open")
    for n in range(5):
        story.send(p, "transacted", f"open {n} ", f"key-{n}", known=False, transaction=txn)
    txn.flush()
    txn.leave()


def pack(scratch: Path, out: Path) -> None:
    """A small archive of it, with nothing of this machine in it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(p for p in scratch.rglob("*") if not p.is_socket()):  # a killed process leaves its own
            facts = archive.gettarinfo(path, path.relative_to(scratch).as_posix())
            facts.uid = facts.gid = facts.mtime = 0
            facts.uname = facts.gname = ""
            archive.addfile(facts, io.BytesIO(path.read_bytes()) if facts.isfile() else None)
    out.write_bytes(packed.getvalue())
    print(f"{out.name}: {len(packed.getvalue())} bytes")


def main(version: str) -> None:
    """Both directories of a version."""
    for ending, code in (("killed", -signal.SIGKILL), ("closed", 0)):
        with tempfile.TemporaryDirectory() as scratch:
            out = HERE / f"{version}-{ending}.tar.xz"
            if out.exists():
                raise SystemExit(f"{out.name} is there, and is never written again")
            ended = subprocess.run([sys.executable, __file__, scratch, ending], check=False)
            if ended.returncode != code:
                raise SystemExit(f"the writer of {out.name} ended with {ended.returncode}, not {code}")
            pack(Path(scratch), out)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(Path(sys.argv[1]), sys.argv[2])
    else:
        main(sys.argv[1])
