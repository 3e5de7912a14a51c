"""Scenarios of scalable topics, driven by the V5 client of Java and the admin API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from tests.interop.agent import Agent, AgentError, place_of
from tests.interop.scenes.servers import Side, scalable
from tests.interop.scenes.world import ABOUT, Trace

SCALABLE: dict[str, tuple[frozenset[str], Callable[[ScalableWorld], Awaitable[None]]]] = {}
GOLDEN_KEYS = ("a", "order-42", "key-0", "ünïcödé", "日本", *(f"k{number}" for number in range(20)))
WAIT_MS = 60_000
Program = Callable[["ScalableWorld"], Awaitable[None]]


def scenario(*about: str) -> Callable[[Program], Program]:
    """Register a program under its own name."""
    assert ABOUT.issuperset(about), about

    def register(program: Program) -> Program:
        SCALABLE[program.__name__] = (frozenset(about), program)
        return program

    return register


class ScalableWorld:
    """One scenario on one side. The agent has clients named `plain` and `tc`, which may begin transactions."""

    def __init__(self, side: Side, agent: Agent, topic: str) -> None:
        self.side, self.agent, self.topic = side, agent, topic
        self.trace: Trace = []

    def note(self, what: str, fact: Any) -> None:
        self.trace.append([what, fact])

    async def admin(self, verb: str, path: str = "") -> tuple[int, Any]:
        return await asyncio.to_thread(self.side.ask, verb, f"{scalable(self.topic)}{path}")

    async def create(self, segments: int) -> None:
        status = await asyncio.to_thread(self.side.create, self.topic, segments)
        assert status // 100 == 2, status

    async def split(self, segment: int) -> int:
        return (await self.admin("POST", f"/split/{segment}"))[0] // 100 * 100

    async def merge(self, one: int, other: int) -> int:
        return (await self.admin("POST", f"/merge/{one}/{other}"))[0] // 100 * 100

    async def shape(self, what: str) -> None:
        """Note the whole DAG."""
        _, found = await self.admin("GET")
        segments = found["segments"]
        segments = segments.values() if isinstance(segments, dict) else segments
        self.note(
            what,
            [
                [
                    one["segmentId"],
                    *(one["hashRange"][end] for end in ("start", "end")),
                    one["state"],
                    sorted(one["parentIds"]),
                    sorted(one["childIds"]),
                ]
                for one in sorted(segments, key=lambda one: one["segmentId"])
            ],
        )
        self.note("epoch", found["epoch"])

    async def producer(self, client: str = "plain") -> None:
        await self.agent.ask("producer", name=f"p{self.topic}", topic=self.topic, client=client)

    async def send(self, value: str, key: str, **more: Any) -> str:
        return str(await self.agent.ask("send", name=f"p{self.topic}", value=value, key=key, **more))

    async def send_all(self, first: int, stop: int, keys: int = 5) -> None:
        for number in range(first, stop):
            await self.send(f"{number}", f"k{number % keys}")

    async def consumer(self, kind: str, client: str = "plain", **more: Any) -> None:
        options = {"subscription": "s", "from": "earliest", **more}
        await self.agent.ask(kind, name=f"c{self.topic}", topic=self.topic, client=client, **options)

    async def take(self, count: int, *, ack: bool = True) -> list[Any]:
        found = await self.agent.receive(f"c{self.topic}", count, quiet_ms=WAIT_MS, ack=ack)
        assert len(found) == count, f"{len(found)} of {count} came"
        return found

    async def quiet(self, what: str) -> None:
        quiet_ms = max(1_000, self.side.quiet_ms)
        found = await self.agent.receive(f"c{self.topic}", 10, quiet_ms=quiet_ms)
        self.note(what, [one["value"] for one in found])

    async def close(self) -> None:
        for kind in "pc":
            with contextlib.suppress(AgentError):
                await self.agent.ask("close", name=f"{kind}{self.topic}")


def by_key(messages: list[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(message["key"], []).append(message["value"])
    return dict(sorted(found.items()))


@scenario()
async def golden_keys_go_to_their_segments(w: ScalableWorld) -> None:
    await w.create(4)
    await w.producer()
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in GOLDEN_KEYS})


@scenario("split")
async def golden_keys_after_a_split(w: ScalableWorld) -> None:
    await w.create(2)
    w.note("split", await w.split(1))
    await w.producer()
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in GOLDEN_KEYS})


@scenario()
async def the_dag_of_a_new_topic(w: ScalableWorld) -> None:
    await w.create(3)
    await w.shape("new")


@scenario("split")
async def the_dag_after_a_split(w: ScalableWorld) -> None:
    await w.create(2)
    w.note("split", await w.split(0))
    await w.shape("after")


@scenario("split")
async def the_dag_after_a_merge(w: ScalableWorld) -> None:
    await w.create(3)
    w.note("merge", await w.merge(1, 2))
    await w.shape("after")


@scenario("split")
async def the_dag_after_splits_and_merges(w: ScalableWorld) -> None:
    await w.create(2)
    for one in (0, 3):
        w.note("split", await w.split(one))
    for pair in ((2, 4), (5, 1)):
        w.note("merge", await w.merge(*pair))
    await w.shape("after")


@scenario("split")
async def changes_that_cannot_be_made(w: ScalableWorld) -> None:
    await w.create(4)
    w.note("missing", (await w.admin("POST", "-missing/split/0"))[0] >= 400)
    w.note("unknown", (await w.admin("POST", "/split/99"))[0] >= 400)
    w.note("apart", (await w.admin("POST", "/merge/0/2"))[0] >= 400)
    w.note("itself", (await w.admin("POST", "/merge/1/1"))[0] >= 400)
    w.note("split", await w.split(0))
    w.note("sealed", (await w.admin("POST", "/split/0"))[0] >= 400)
    await w.shape("after")


@scenario()
async def a_topic_is_created_once_and_deleted(w: ScalableWorld) -> None:
    w.note("missing", (await w.admin("GET"))[0])
    await w.create(1)
    w.note("again", await asyncio.to_thread(w.side.create, w.topic, 1))
    w.note("delete", (await w.admin("DELETE"))[0] // 100)
    w.note("gone", (await w.admin("GET"))[0])


@scenario("split")
async def a_queue_reads_both_sides_of_a_split(w: ScalableWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 10)
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    came: set[int] = set()
    while len(came) < 20:  # a slow acknowledgement may bring one again
        came.update(int(one["value"]) for one in await w.take(1))
    w.note("came", sorted(came))


@scenario("split")
async def a_stream_keeps_the_order_of_keys_over_a_split(w: ScalableWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("stream")
    await w.send_all(0, 15)
    w.note("split", await w.split(0))
    await w.send_all(15, 30)
    w.note("came", by_key(await w.take(30)))


@scenario("split")
async def a_stream_keeps_the_order_of_keys_over_a_merge(w: ScalableWorld) -> None:
    await w.create(2)
    await w.producer()
    await w.consumer("stream")
    await w.send_all(0, 15)
    w.note("merge", await w.merge(0, 1))
    await w.send_all(15, 30)
    w.note("came", by_key(await w.take(30)))


@scenario("split")
async def a_checkpoint_reads_on_over_a_split(w: ScalableWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.send_all(0, 10)
    name = f"c{w.topic}"
    start = {"client": "plain", "topic": w.topic}
    await w.agent.ask("checkpoint_consumer", name=name, start="earliest", **start)
    await w.take(6, ack=False)
    kept = await w.agent.ask("checkpoint", name=name)
    await w.agent.ask("close", name=name)
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    await w.agent.ask("checkpoint_consumer", name=name, start=kept, **start)
    w.note("rest", sorted(int(one["value"]) for one in await w.take(14, ack=False)))


@scenario("redelivery", "split")
async def a_refused_message_comes_again_from_a_sealed_segment(w: ScalableWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue", nack_ms=200)
    await w.send("v", "k")
    (message,) = await w.take(1, ack=False)
    w.note("split", await w.split(0))
    await w.agent.ask("nack", name=f"c{w.topic}", message=message["message"])
    (again,) = await w.take(1)
    w.note("again", [again["value"], again["redelivered"]])


@scenario("transaction")
async def a_committed_transaction_is_seen(w: ScalableWorld) -> None:
    await _written(w, "commit")


@scenario("transaction")
async def an_aborted_transaction_is_not_seen(w: ScalableWorld) -> None:
    await _written(w, "abort")


async def _written(w: ScalableWorld, end: str) -> None:
    await w.create(2)
    await w.producer("tc")
    await w.consumer("queue")
    await w.agent.ask("begin", name=f"t{w.topic}", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction=f"t{w.topic}")
    await w.quiet("before")
    await w.agent.ask(end, name=f"t{w.topic}")
    if end == "commit":
        w.note("after", sorted(one["value"] for one in await w.take(4)))
    await w.send("later", "k0")
    w.note("then", [one["value"] for one in await w.take(1)])


@scenario("transaction", "redelivery")
async def acknowledgements_of_an_aborted_transaction_are_void(w: ScalableWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue", client="tc")
    await w.send("v", "k")
    (message,) = await w.take(1, ack=False)
    await w.agent.ask("begin", name=f"t{w.topic}", client="tc")
    await w.agent.ask("ack", name=f"c{w.topic}", message=message["message"], transaction=f"t{w.topic}")
    await w.agent.ask("abort", name=f"t{w.topic}")
    await w.agent.ask("close", name=f"c{w.topic}")
    await w.consumer("queue", client="tc")
    w.note("again", [one["value"] for one in await w.take(1)])
