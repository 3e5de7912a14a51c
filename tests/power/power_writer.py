"""Sends through an embedded engine until its disk goes away, and says on standard output what was acknowledged.

    python -m tests.power.power_writer DATA LIFE

One line `topic segment offset value` per acknowledged message. Two threads send: one message at a time, and in bulk.
"""

from __future__ import annotations

import sys
import threading

import engine

lock = threading.Lock()


def say(topic: str, ident: engine.MessageId, value: bytes) -> None:
    """One acknowledged message."""
    with lock:
        sys.stdout.write(f"{topic} {ident.segment_id} {ident.offset} {value.decode()}\n")
        sys.stdout.flush()


def one_by_one(e: engine.Engine, life: str) -> None:
    """Each is acknowledged before the next is sent."""
    with e.producer("single", name=f"single-{life}") as producer:
        for n in range(100_000):
            value = b"s-%s-%d" % (life.encode(), n)
            say("single", producer.send(value, key=b"k%d" % (n % 7)), value)


def many(e: engine.Engine, life: str) -> None:
    """A thousand at a time, over four segments; only the last of them is told, when all are acknowledged."""
    with e.producer("many", name=f"many-{life}") as producer:
        for n in range(10_000):
            values = [b"m-%s-%d-%d" % (life.encode(), n, i) + b"." * 100 for i in range(1000)]
            producer.send_batch(values, keys=[b"k%d" % (i % 50) for i in range(1000)])
            producer.flush()
            with lock:
                sys.stdout.write("\n".join(f"many -1 -1 {value.decode()}" for value in values) + "\n")
                sys.stdout.flush()


def guarded(target: object, e: engine.Engine, life: str) -> None:
    """The disk's end ends the thread."""
    try:
        target(e, life)  # type: ignore[operator]
    except engine.EngineError as error:
        print(f"ended: {type(error).__name__}: {error}", file=sys.stderr)


def main() -> None:
    """Until both threads have met the end."""
    data, life = sys.argv[1:]
    e = engine.open(data)
    if life == "0":
        e.admin.create_topic("many", segments=4)
    threads = [threading.Thread(target=guarded, args=(t, e, life), daemon=True) for t in (one_by_one, many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
