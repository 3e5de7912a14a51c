"""`JavaWorld`: what a scenario does things with by Java's clients, V5 and classic, and the trace that it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from tests.interop.agent import UNBATCHED, Agent, AgentError
from tests.interop.scenes.servers import Side, scalable
from tests.interop.scenes.world import Trace

WAIT_MS = 60_000
QUIET_MS_MIN = 1_000
MOST = 1_000
PAUSE_S = 1.0  # for an acknowledgement, of which the V5 client does not say when it has come
RETRIES_S = 30.0


class JavaWorld:
    """One scenario on one side. The agent has clients of V5 named `plain` and `tc`, which may begin transactions, one
    of transactions that end by themselves after a second, `short`, and a classic one, `classic`.

    Producers, consumers and transactions have short names, which are those of one scenario.
    """

    def __init__(self, side: Side, agent: Agent, topic: str) -> None:
        self.side, self.agent, self.topic = side, agent, topic
        self.trace: Trace = []
        self._open: dict[str, str] = {}  # what must be closed, by the command that closes it

    def note(self, what: str, fact: Any) -> None:
        self.trace.append(json.loads(json.dumps([what, fact])))

    def named(self, name: str) -> str:
        """What the agent knows it by."""
        return f"{name} {self.topic}"

    async def ask(self, do: str, name: str, **more: Any) -> Any:
        """Something of the agent, by a short name; `transaction` is one too."""
        if "transaction" in more:
            more["transaction"] = self.named(more["transaction"])
        return await self.agent.ask(do, name=self.named(name), **more)

    async def outcome(self, what: str, do: str, name: str, **more: Any) -> None:
        """Note "Ok", or the error by its class."""
        try:
            await self.ask(do, name, **more)
        except AgentError as error:
            self.note(what, error.kind)
        else:
            self.note(what, "Ok")

    async def pause(self) -> None:
        await asyncio.sleep(PAUSE_S)

    # -- the topic -------------------------------------------------------------------------------------------------

    async def admin(self, verb: str, path: str = "", body: Any = None, topic: str = "") -> tuple[int, Any]:
        return await asyncio.to_thread(self.side.ask, verb, f"{scalable(topic or self.topic)}{path}", body)

    async def create(self, segments: int, topic: str = "") -> None:
        status = await asyncio.to_thread(self.side.create, topic or self.topic, segments)
        assert status // 100 == 2, status

    async def split(self, segment: int) -> int:
        return await self._changed(f"/split/{segment}")

    async def merge(self, one: int, other: int) -> int:
        return await self._changed(f"/merge/{one}/{other}")

    async def _changed(self, path: str) -> int:
        """The kind of the status, 200 for all that say that it is done. What is not there yet after a start is asked
        for again.
        """
        until = time.monotonic() + RETRIES_S
        while (status := (await self.admin("POST", path))[0]) >= 500 and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        return status // 100 * 100

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

    # -- V5 --------------------------------------------------------------------------------------------------------

    async def producer(self, client: str = "plain", name: str = "p", topic: str = "", **more: Any) -> None:
        self._open[name] = "close"
        await self.ask("producer", name, topic=topic or self.topic, client=client, **UNBATCHED, **more)

    async def send(self, value: str, key: str = "k", producer: str = "p", **more: Any) -> str:
        return str(await self.ask("send", producer, value=value, key=key, **more))

    async def send_all(self, first: int, stop: int, keys: int = 5, **more: Any) -> None:
        for number in range(first, stop):
            await self.send(f"{number}", f"k{number % keys}", **more)

    async def consumer(self, kind: str, client: str = "plain", name: str = "c", topic: str = "", **more: Any) -> None:
        options = {"subscription": "s", "from": "earliest", **more}
        self._open[name] = "close"
        await self.ask(kind, name, topic=topic or self.topic, client=client, **options)

    async def checkpoint(self, start: str, name: str = "c", topic: str = "") -> None:
        """A checkpoint consumer."""
        self._open[name] = "close"
        await self.ask("checkpoint_consumer", name, topic=topic or self.topic, client="plain", start=start)

    async def close_one(self, name: str) -> None:
        await self.ask(self._open.pop(name), name)

    async def receive(self, count: int, quiet_ms: int, name: str = "c", *, ack: bool = False) -> list[Any]:
        """At most so many messages; fewer where none has come for a while."""
        do = "classic_receive" if self._open[name].startswith("classic") else "receive"
        more = {"ack": True} if ack else {}
        return list(await self.agent.begin(do, name=self.named(name), count=count, quiet_ms=quiet_ms, **more))

    async def take(self, count: int, name: str = "c", *, ack: bool = True) -> list[Any]:
        found = await self.receive(count, WAIT_MS, name, ack=ack)
        assert len(found) == count, f"{len(found)} of {count} came"
        return found

    async def take_once(self, values: int, name: str = "c") -> list[Any]:
        """So many different values, as they came first: a slow acknowledgement may bring one again."""
        found: dict[str, Any] = {}
        while len(found) < values:
            (one,) = await self.take(1, name)
            found.setdefault(one["value"], one)
        return list(found.values())

    async def quiet(self, what: str, name: str = "c") -> None:
        """Note what still comes."""
        found = await self.receive(10, max(QUIET_MS_MIN, self.side.quiet_ms), name)
        self.note(what, [one["value"] for one in found])

    async def rest(self, name: str = "c") -> list[Any]:
        """All that is there: of a new consumer the first one may take a while."""
        first = await self.take(1, name)
        return first + await self.receive(MOST, max(QUIET_MS_MIN, self.side.quiet_ms), name, ack=True)

    # -- the classic client ----------------------------------------------------------------------------------------

    async def classic_producer(self, name: str = "p", topic: str = "", *, batched: bool = False) -> None:
        self._open[name] = "classic_close"
        more = {"batched": True} if batched else {}
        await self.ask("classic_producer", name, topic=classic(topic or self.topic), **more)

    async def classic_consumer(self, kind: str = "Shared", name: str = "c", topic: str = "", **more: Any) -> None:
        self._open[name] = "classic_close"
        await self.ask("classic_consumer", name, topic=classic(topic or self.topic), type=kind, **more)

    async def classic_send(self, *values: str, producer: str = "p", **more: Any) -> None:
        """Under way at the same time: a producer that batches makes one batch of them."""
        if "transaction" in more:
            more["transaction"] = self.named(more["transaction"])
        name = self.named(producer)
        await asyncio.gather(
            *(self.agent.begin("classic_send", now=True, name=name, value=value, **more) for value in values)
        )

    async def close(self) -> None:
        for name, do in self._open.items():
            with contextlib.suppress(AgentError):
                await self.ask(do, name)


def classic(topic: str) -> str:
    """The topic of that name that classic clients use."""
    return topic.replace("topic://", "persistent://")


def by_key(messages: list[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(message["key"], []).append(message["value"])
    return dict(sorted(found.items()))


def numbers(messages: list[Any]) -> list[int]:
    """The values, which are numbers, in order."""
    return sorted(int(message["value"]) for message in messages)
