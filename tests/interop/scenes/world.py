"""`World`: what a scenario does things with, and the trace that it leaves; `scenario`, which registers one."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pulsar

from tests.interop.scenes.servers import Side

WAIT_MS = 60_000  # for what has to come
REST_MS = 20_000  # for what came at the other side
EARLIEST = pulsar.InitialPosition.Earliest
NACK_MS = 100
ABOUT = frozenset({"split", "kill", "redelivery", "seek", "transaction"})

Trace = list[Any]


class Scenario(NamedTuple):
    """`about`: words of ABOUT. A generator gives way once: there the server is killed and started again. Coroutines are
    driven by clients of Java. `by_chance`: what is noted whose fact is not the same in each run at Apache Pulsar.
    """

    name: str
    about: frozenset[str]
    program: Callable[[Any], Any]
    by_chance: frozenset[str] = frozenset()

    def certain(self, trace: Trace) -> Trace:
        """The trace, without facts that are by chance."""
        return [[what, None if what in self.by_chance else fact] for what, fact in trace]

    @property
    def killed(self) -> bool:
        return inspect.isgeneratorfunction(self.program) or inspect.isasyncgenfunction(self.program)

    @property
    def java(self) -> bool:
        return inspect.iscoroutinefunction(self.program) or inspect.isasyncgenfunction(self.program)


SCENARIOS: dict[str, Scenario] = {}


def scenario(*about: str, by_chance: Sequence[str] = ()) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a program under its own name."""
    assert ABOUT.issuperset(about), about

    def register(program: Callable[[Any], Any]) -> Callable[[Any], Any]:
        name = program.__name__
        assert name not in SCENARIOS, f"two scenarios have the name {name}"
        SCENARIOS[name] = Scenario(name, frozenset(about), program, frozenset(by_chance))
        return program

    return register


class World:
    """One scenario on one side. `note` writes a fact into the trace: JSON, without ids, names and times of one run."""

    def __init__(self, side: Side, client: pulsar.Client, topic: str, expected: Trace | None = None) -> None:
        """`expected`: the trace that is hoped for. It says how much to wait for before anything counts as quiet."""
        self._expected = expected or []
        self.side = side
        self.client = client
        self.topic = topic
        self.trace: Trace = []

    def note(self, what: str, fact: Any) -> None:
        self.trace.append(json.loads(json.dumps([what, fact])))

    def producer(self, topic: str = "", *, batched: bool = False, **more: Any) -> Any:
        """Batches are as long as it is not flushed."""
        return self.client.create_producer(
            topic or self.topic, batching_enabled=batched, batching_max_publish_delay_ms=WAIT_MS, **more
        )

    def send(self, count: int, *, batched: bool = False, keys: int = 0, first: int = 0, topic: str = "") -> list[Any]:
        """Values "0", "1" and so on, in one batch or alone; their ids."""
        producer, told = self.producer(topic, batched=batched), []
        for number in range(first, first + count):
            key = f"k{number % keys}" if keys else None
            producer.send_async(b"%d" % number, lambda result, ident: told.append(ident), partition_key=key)
        producer.flush()
        producer.close()
        return told

    def subscribe(self, kind: str = "Exclusive", name: str = "s", *, topic: str = "", **more: Any) -> Any:
        options = {"initial_position": EARLIEST, "negative_ack_redelivery_delay_ms": NACK_MS, **more}
        return self.client.subscribe(topic or self.topic, name, getattr(pulsar.ConsumerType, kind), **options)

    def take(self, consumer: Any, count: int, *, ack: bool = False) -> list[Any]:
        messages = [consumer.receive(WAIT_MS) for _ in range(count)]
        if ack:
            for message in messages:
                consumer.acknowledge(message)
        return messages

    def read(self, what: str, consumer: Any, count: int, *, ack: bool = False) -> list[Any]:
        """Take so many messages, and note their values."""
        messages = self.take(consumer, count, ack=ack)
        self.note(what, values(messages))
        return messages

    def rest(self, what: str, consumer: Any) -> list[Any]:
        """Note the values of all that still comes."""
        messages: list[Any] = []
        with contextlib.suppress(pulsar.Timeout):
            while len(messages) < self._hoped(what):
                messages.append(consumer.receive(REST_MS))
        with contextlib.suppress(pulsar.Timeout):
            while True:
                messages.append(consumer.receive(self.side.quiet_ms))
        self.note(what, values(messages))
        return messages

    def _hoped(self, what: str) -> int:
        """How many values the next fact has, if the trace is as expected so far."""
        here = len(self.trace)
        if self._expected[:here] != self.trace or here >= len(self._expected) or self._expected[here][0] != what:
            return 0
        return len(self._expected[here][1])

    def outcome(self, what: str, call: Callable[[], Any]) -> Any:
        """Note "Ok", or the error by its name."""
        try:
            done = call()
        except pulsar.PulsarException as error:
            self.note(what, type(error).__name__)
            return None
        self.note(what, "Ok")
        return done

    def backlog(self, what: str, expected: int, name: str = "s") -> None:
        """Note how many messages a subscription has still to acknowledge: both sides publish it now and then."""
        self.note(what, self.side.backlog(self.topic, name, expected))


def values(messages: list[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


def counts(messages: list[Any]) -> dict[str, int]:
    """How often each was delivered before."""
    return {message.data().decode(): message.redelivery_count() for message in messages}
