"""One round on machines: a topic of its own under load and faults; then it is read, twice and after all was lost, and
judged. What is kept of a round is its `Totals`, so that hours of rounds need the memory of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import EngineError, NotFoundError, TransactionNotFoundError
from engine.testing.checker import check
from engine.testing.history import Fact, History
from engine.testing.transacting import Transactor, Transformer
from engine.testing.workload import (
    CheckpointReader,
    QueueReader,
    Reader,
    Sender,
    Shaper,
    StreamReader,
    read_all,
    write_layout,
)
from tests.chaos.machines import Machines
from tests.chaos.progress import PROGRESS_S_MAX, Progress, acknowledged, heard_by, was_split
from tests.chaos.test_kill_loop import ENDING_S_MAX

T = TypeVar("T")

IDLE_S = 1.0
TIMEOUTS_S = (5.0, 15.0)  # of transactions
READERS: tuple[type[Reader], ...] = (StreamReader, StreamReader, QueueReader, CheckpointReader)
SEGMENTS_MAX = 6
DRAINS_S_MAX = 300.0  # until consumers have come to the end; else something can never be read
HEALED_MIN = 20  # sends that are acknowledged behind the last fault


@dataclass
class Totals:
    """What rounds have done. `violations`: of the checker, each with its round's seed. `pause_s`: the longest time in
    which no send was acknowledged, while producers sent.
    """

    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    pause_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    def add(self, events: list[Fact]) -> None:
        """The events of one round, up to where its actors were stopped or further."""
        kinds = {e["call"]: e["kind"] for e in events if e["what"] == "attach" and e["phase"] == "invoke"}
        stopped = next((e["n"] for e in events if e.get("text") == "stop"), len(events))
        for event in events:
            name = _name_of(event, kinds)
            if name:
                self.counts[name] += 1
        times = [e["time"] for e in events[:stopped] if acknowledged(e)]
        self.pause_s = max([self.pause_s, *(after - before for before, after in pairwise(times))])
        self.rounds += 1


def _name_of(event: Fact, kinds: dict[int, str]) -> str:
    """What is counted: the name of its row in the report, or ""."""
    what, phase = event["what"], event["phase"]
    if what == "send":
        which = "messages sent in transactions" if "transaction" in event else "messages sent"
        names = {"invoke": which, "ok": "sends acknowledged", "info": "sends with an unknown outcome"}
        return names.get(phase, "sends refused")
    if what == "deliver":
        made = event["client"] == "maker"
        return "messages received, by a transformer" if made else f"messages received, {kinds[event['attachment']]}"
    if what == "txn_end" and phase == "ok":
        return f"transactions {event['state'].lower()}"
    if what == "final":
        return "messages of final readings"
    if event["client"] == "shaper" and what == "fault":
        word = event["text"].split(" ")[0]
        return {"split": "splits", "merge": "merges", "rebucket": "rebuckets"}.get(word, "changes of shape refused")
    return ""


class Round:
    """Its topics, actors and history. `name`: in the names of its topics."""

    def __init__(self, machines: Machines, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.sent, self.splits = Progress(acknowledged), Progress(was_split)
        self.history = History(asyncio.get_running_loop().time, heard_by(self.sent, self.splits))
        self.orders, self.copies = f"orders-{name}", f"copies-{name}"
        self._machines = machines
        self._client = machines.client()
        self._shaping = True
        self.senders: list[Sender] = []
        self.writers: list[Transactor] = []
        self.readers: list[Reader] = []
        self.maker = self._maker()

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def _actors(self) -> None:
        for number in range(2):
            sender = Sender(self.history, self._client, f"p{number}", self.orders, self._own())
            sender.pause_s_max = 0.1
            self.senders.append(sender)
        writer = Transactor(self.history, self._client, "w0", (self.orders,), self._own())
        writer.timeouts_s, writer.pause_s_max = TIMEOUTS_S, 0.1
        self.writers.append(writer)
        for number, kind in enumerate(READERS):
            name = f"{kind.kind}{number}"
            reader = kind(self.history, self._machines.client, name, self.orders, f"sub-{kind.kind}", self._own())
            reader.life_s_max, reader.idle_s = 5.0, IDLE_S
            self.readers.append(reader)

    def _maker(self) -> Transformer:
        queue, topics = self.rng.random() < 0.5, (self.orders, self.copies)
        maker = Transformer(
            self.history, self._machines.client, "maker", topics, "making", self._own(), queue=queue
        )  # fmt: skip
        maker.timeout_s, maker.life_s_max, maker.idle_s, maker.batch_max = max(TIMEOUTS_S), 5.0, IDLE_S, 40
        return maker

    async def run(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Load while `disturb` runs, and the readings. Raises AssertionError, TimeoutError: something does not end."""
        await insist(lambda: self._client.admin.create_topic(self.orders, segments=2))
        self._actors()
        actors = [*self.senders, *self.writers, *self.readers, self.maker]
        working = [asyncio.create_task(one.run(100_000), name=one.name) for one in (*self.senders, *self.writers)]
        working += [asyncio.create_task(one.run(), name=one.name) for one in (*self.readers, self.maker)]
        shaping = asyncio.create_task(self._shape(), name="shaper")
        try:
            await self.sent.more(1)
            await disturb()
            await self.sent.more(HEALED_MIN)  # L2
            await self.splits.until(1)
            self.history.record("nemesis", "fault", text="stop")
            self._shaping = False
            for actor in actors:
                actor.stop()
            await done(*working, shaping)
        finally:
            for task in (*working, shaping):
                task.cancel()
            await asyncio.gather(*working, shaping, return_exceptions=True)
        await self._read_everything()

    async def _shape(self) -> None:
        shaper = Shaper(self.history, self.orders, self._own(), SEGMENTS_MAX)
        while self._shaping:
            await shaper.change(self._client.admin)
            await asyncio.sleep(self.rng.uniform(0.3, 3.0))

    async def _read_everything(self) -> None:
        await self._transactions_ended()
        await self._read(self.orders, 1)
        drains = [asyncio.create_task(one.drain(), name=one.name) for one in (self.maker, *self.readers)]
        await done(*drains, seconds=DRAINS_S_MAX)
        await self._read(self.copies, 1)
        await self._read(self.orders, 2)
        await self._read(self.copies, 2)
        await self._machines.restart_everything()
        await self._read(self.orders, 3)
        await self._read(self.copies, 3)
        layout = await insist(lambda: self._client.admin.get_metadata(self.orders))
        write_layout(self.history, self.orders, layout)

    async def _transactions_ended(self) -> None:
        """Wait until each that was begun has ended, and write down how, of those that are not forgotten yet."""
        async with asyncio.timeout(PROGRESS_S_MAX):
            for number in dict.fromkeys(
                event["transaction"] for event in self.history.events if "transaction" in event
            ):
                state = "OPEN"
                while state == "OPEN":
                    try:
                        state = str((await self._client.join_transaction(number)).state)
                    except TransactionNotFoundError:
                        break
                    except EngineError:
                        await asyncio.sleep(0.2)
                else:
                    self.history.record("spy", "txn_state", transaction=number, state=state)

    async def _read(self, topic: str, reading: int) -> None:
        """What cannot be read is missed by the checker."""
        try:
            await read_all(self.history, self._client, topic, reading, IDLE_S)
        except EngineError as e:
            self.history.record("final", "fault", text=f"reading {reading} of {topic} ended: {e!r}")

    def keep(self, path: Path) -> None:
        """Write the history down, a line for each event."""
        path.write_text("".join(f"{json.dumps(event)}\n" for event in self.history.events))

    async def close(self) -> None:
        """Delete the topics."""
        for topic in (self.orders, self.copies):
            await insist(partial(self._delete, topic))
        await self._client.close()

    async def _delete(self, topic: str) -> None:
        with contextlib.suppress(NotFoundError):  # by a call whose answer was lost
            await self._client.admin.delete_topic(topic)

    async def judge(self) -> list[str]:
        """The violations, as text. On a thread: the lines go on."""
        return [str(violation) for violation in await asyncio.to_thread(check, self.history.events)]


async def done(*tasks: asyncio.Task[None], seconds: float = ENDING_S_MAX) -> None:
    """Wait for tasks that were asked to end. Raises AssertionError that says where those are that do not."""
    _, pending = await asyncio.wait(tasks, timeout=seconds)
    assert not pending, "; ".join(f"{task.get_name()}: {' > '.join(_stack(task))}" for task in pending)
    await asyncio.gather(*tasks)


def _stack(task: asyncio.Task[None]) -> Iterator[str]:
    """The coroutines that wait for each other, outermost first."""
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_name}:{frame.f_lineno}"
        waiting = waiting.cr_await
    yield repr(waiting)[:200]


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call it until it is answered: a broker that was asked may have died, or its stores may come back later."""
    async with asyncio.timeout(PROGRESS_S_MAX):
        while True:
            try:
                return await call()
            except EngineError:
                await asyncio.sleep(0.2)
