"""A blocking client that is closed while many threads use it: each call ends, with a result or AlreadyClosedError."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import engine

JOIN_S = 60.0
ALLOWED = (engine.AlreadyClosedError, engine.UnknownOutcomeError)  # the latter: a change over HTTP was under way

Call = Callable[[], object]


def calls_of(client: engine.Client) -> dict[str, Call]:
    """What the threads do, again and again, until it fails."""
    producer, narrow = client.producer("t"), client.producer("t", max_pending_bytes=5 << 20)
    stream = client.stream_consumer("t", "s", initial_position="earliest")
    queue = client.queue_consumer("t", "q", initial_position="earliest")
    reader = client.checkpoint_consumer("t", start=engine.Checkpoint.earliest())
    view, watch = client.topic_view("t"), client.watch_topics()

    def new_producer() -> None:
        made = client.producer("t")
        made.send(b"v")
        made.close()

    def transact() -> None:
        with client.transaction() as begun:
            producer.send(b"v", transaction=begun)

    def made_and_closed(make: Callable[[], Any]) -> Call:
        return lambda: make().close()

    def received(consumer: Any, acknowledge: Callable[[Any], None]) -> Call:
        return lambda: acknowledge(consumer.receive())

    return {
        "send": lambda: producer.send(b"v", key="k"),
        "flush": lambda: (producer.send_nowait(b"v"), producer.flush()),
        "batch": lambda: producer.send_batch([b"v"] * 100),
        "when full": lambda: narrow.send_nowait(bytes(100_000)),
        "writable": narrow.writable,
        "stream": received(stream, stream.acknowledge_cumulative),
        "queue": received(queue, queue.acknowledge),
        "not acknowledged": received(queue, queue.negative_acknowledge),
        "batches": lambda: queue.receive_batch(timeout=0.01),
        "checkpoint": lambda: (reader.receive(0.01), reader.seek(reader.checkpoint())),
        "view": view.segments,
        "watch": lambda: watch.next_change(0.01),
        "transaction": transact,
        "new producer": new_producer,
        "new stream": made_and_closed(lambda: client.stream_consumer("t", "s")),
        "new queue": made_and_closed(lambda: client.queue_consumer("t", "q")),
        "new reader": made_and_closed(lambda: client.checkpoint_consumer("t")),
        "new view": made_and_closed(lambda: client.topic_view("t")),
        "new watch": made_and_closed(client.watch_topics),
        "new ranges": made_and_closed(lambda: client.range_reader("t", {0: (0, 0)})),
        "list": client.list_topics,
        "exists": lambda: client.topic_exists("t"),
        "statistics": lambda: client.admin.get_stats("t"),
        "change": lambda: client.admin.set_auto_scale_policy("t", {"enabled": False}),
        "connect": client.connect,
    }


class Users:
    """Threads, each of which repeats a call until it fails. `done`: released whenever one has returned."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self.outcomes: dict[str, BaseException] = {}
        self.done = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._use, args=item, name=item[0], daemon=True)
                         for item in calls.items()]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _use(self, name: str, call: Call) -> None:
        while name not in self.outcomes:
            try:
                call()
                self.done.release()
            except BaseException as e:
                self.outcomes[name] = e

    def join(self) -> None:
        for thread in self._threads:
            thread.join(JOIN_S)
        assert not [thread.name for thread in self._threads if thread.is_alive()], "these wait for ever"


@pytest.mark.parametrize("returned", [0, 1, 50, 400])
def test_every_call_ends_when_the_client_is_closed(blocking: engine.Client, returned: int):
    """After so many calls have returned, by two threads at once."""
    blocking.admin.create_topic("t", segments=2)
    users = Users(calls_of(blocking))
    for _ in range(returned):
        assert users.done.acquire(timeout=JOIN_S)
    closing = [threading.Thread(target=blocking.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(JOIN_S)
        assert not thread.is_alive()
    users.join()
    wrong = {name: repr(e) for name, e in users.outcomes.items() if not isinstance(e, ALLOWED)}
    assert not wrong
    unknown = [name for name, e in users.outcomes.items() if isinstance(e, engine.UnknownOutcomeError)]
    assert set(unknown) <= {"change"}


def test_every_producer_that_is_made_while_its_client_closes_is_closed(blocking: engine.Client):
    """Threads that make a producer and send: whichever got one can send, or is told."""
    blocking.admin.create_topic("t")
    begun = threading.Semaphore(0)
    outcomes: list[object] = []

    def use() -> None:
        begun.release()
        try:
            while True:
                producer = blocking.producer("t")
                for _ in range(5):
                    producer.send(b"v")
        except BaseException as e:
            outcomes.append(type(e))

    threads = [threading.Thread(target=use, daemon=True) for _ in range(40)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    blocking.close()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "it waits for ever"
    assert outcomes == [engine.AlreadyClosedError] * 40


@pytest.mark.parametrize("what", ["producer", "stream_consumer", "queue_consumer"])
def test_every_call_ends_when_what_it_is_of_is_closed(blocking: engine.Client, what: str):
    made: Any = blocking.producer("t") if what == "producer" else getattr(blocking, what)("t", "s")
    calls: dict[str, Call] = {"receive": lambda: made.receive(0.01), "batch": lambda: made.receive_batch(timeout=0.01)}
    if what == "producer":
        calls = {
            "send": lambda: made.send(b"v"),
            "flush": lambda: (made.send_nowait(b"v"), made.flush()),
            "batch": lambda: made.send_batch([b"v"] * 100),
            "writable": made.writable,
        }
    users = Users({f"{name} {n}": call for n in range(5) for name, call in calls.items()})
    for _ in range(50):
        assert users.done.acquire(timeout=JOIN_S)
    made.close()
    users.join()
    assert {type(outcome) for outcome in users.outcomes.values()} == {engine.AlreadyClosedError}
