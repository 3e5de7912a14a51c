"""One short life in which transactions do everything they can, and one crash, somewhere in it.

Transactions write over segments and are committed, aborted, forgotten; one has a name and two attempts, of which one is
accepted. One client transforms a topic as a stream, another as a queue: what they read is acknowledged in the
transaction that has what they made. In the end everything is collected, the power fails, and all is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from engine.errors import EngineError
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from engine.testing.disk import SimFile
from engine.testing.history import value_of
from engine.testing.transacting import Transformer, begin, end, producer_of, record_write
from engine.testing.workload import read_all
from tests.simulation.broker_scenario import judge
from tests.simulation.crash_points import CrashPoints
from tests.simulation.transaction_scenario import overdue, spy

ORDERS, COPIES, RECEIPTS = "orders", "copies", "receipts"
RETENTION_S, FORGOTTEN_S, DOWN_S = 3.0, 2.0, 0.5
CONFIG = replace(DEFAULT_CONFIG, transaction_retention_time=RETENTION_S, transaction_named_retention_time=RETENTION_S)


@dataclass(frozen=True)
class Strike:
    """Where the crash is, and what it takes: "kill" leaves what was written, "power cut" only what was synced."""

    label: str
    number: int
    when: str
    how: str = "kill"


class CrashStory:
    """Call it with a cluster; how often each durable call was made. Raises AssertionError with the violations."""

    def __init__(self, strike: Strike | None) -> None:
        self.strike = strike

    async def __call__(self, cluster: SimCluster) -> dict[str, int]:
        self.cluster, self.history, self._sent = cluster, cluster.history, 0
        self.broker = await cluster.start()
        await self.broker.process.do(lambda: self._create(self.broker))
        self.client = cluster.client("c-writer", self.broker)
        spying = asyncio.create_task(spy(cluster))
        self.producer = await producer_of(self.history, self.client, ORDERS, "writer")
        await self._send_all(None, 4)
        strike = self.strike
        chosen = None if strike is None else (strike.label, strike.number, strike.when)
        points = CrashPoints(cluster, self.broker, chosen, "kill" if strike is None else strike.how)
        points.watch()
        rising = asyncio.create_task(self._rise(points))
        with disk_watched(points):
            await self._live()
        assert strike is None or points.struck.is_set(), f"{strike} is not a point of this life"
        rising.cancel()
        await self._read_everything()
        spying.cancel()
        judge(cluster)
        return points.counts

    async def _create(self, broker: SimBroker) -> None:
        for topic in (ORDERS, COPIES, RECEIPTS):
            await broker.broker.admin.create_topic(topic, segments=2)

    async def _rise(self, points: CrashPoints) -> None:
        """Whoever struck it down, it comes back."""
        await points.struck.wait()
        await asyncio.sleep(DOWN_S)
        await self.broker.start()

    async def _live(self) -> None:
        makers = [self._maker("maker", COPIES, queue=False), self._maker("clerk", RECEIPTS, queue=True)]
        making = [asyncio.create_task(maker.run()) for maker in makers]
        await asyncio.sleep(0.2)
        await self._transact("commit", 3)
        await self._transact("commit", 4, behind=True)
        await self._transact("abort", 3)
        await self._attempts()
        await self._transact(None, 2)
        await self._send_all(None, 2)
        await asyncio.sleep(FORGOTTEN_S + 2.0)
        for maker in makers:
            maker.stop()
        await asyncio.gather(*making)
        await asyncio.sleep(maker_timeout_s() + 1.0)
        for maker in makers:
            await maker.drain()
        await asyncio.sleep(RETENTION_S + 12.0)  # everything is collected

    def _maker(self, name: str, target: str, *, queue: bool) -> Transformer:
        connect = lambda: self.cluster.client(f"c-{name}", self.broker)  # noqa: E731
        rng = self.cluster.rng(name)
        maker = Transformer(self.history, connect, name, (ORDERS, target), f"sub-{name}", rng, queue=queue)
        maker.timeout_s, maker.kill_rate, maker.batch_max, maker.idle_s = maker_timeout_s(), 0.0, 3, 2.0
        maker.abort_rate, maker.life_s_max = 0.3, 30.0
        return maker

    async def _transact(self, action: str | None, count: int, *, behind: bool = False) -> None:
        """One with so many messages; without an action it is left to its timeout. `behind`: before the answers."""
        transaction = None
        while transaction is None:
            timeout = FORGOTTEN_S if action is None else 30.0
            transaction = await begin(self.history, self.client, "writer", timeout)
        sending = asyncio.create_task(self._send_all(transaction, count))
        if behind:
            await asyncio.sleep(0)  # they begin
            await asyncio.sleep(0)
        else:
            await sending
        if action is not None:
            await end(self.history, "writer", transaction, action)
        await sending

    async def _attempts(self) -> None:
        """A name, and two workers that write in it; the commit accepts one of them."""
        transaction = None
        while transaction is None:
            transaction = await begin(self.history, self.client, "writer", 30.0, "job-1")
        for attempt in ("task-0", "task-1"):
            try:
                joined = await self.client.join_transaction(transaction.id, attempt)
                await self._send_all(joined, 2)
                await joined.flush()
            except EngineError as e:
                self.history.record("writer", "fault", text=f"{attempt}: {e!r}")
        await end(self.history, "writer", transaction, "commit", ["task-0"])

    async def _send_all(self, transaction, count: int) -> None:
        await asyncio.gather(*(self._send(transaction) for _ in range(count)))

    async def _send(self, transaction) -> None:
        self._sent += 1
        key = f"k{self._sent % 5}"
        value = value_of("writer", self._sent, key)
        inside = {} if transaction is None else {"transaction": transaction.id, "attempt": transaction.attempt}
        call = self.history.invoke("writer", "send", value=value.decode(), key=key, topic=ORDERS, **inside)
        options = {} if transaction is None else {"transaction": transaction}
        await record_write(call, self.producer.send(value, key=key, **options))

    async def _read_everything(self) -> None:
        left = await overdue(self.cluster, RETENTION_S)
        assert not left, f"never forgotten: {left[:4]} and {len(left)} in all"
        for reading in (1, 2):
            client = self.cluster.client("c-final", self.broker)
            for topic in (ORDERS, COPIES, RECEIPTS):
                await read_all(self.history, client, topic, reading)
            await client.close()
            if reading == 1:
                await self.broker.power_cut()
                await self.broker.start()


def maker_timeout_s() -> float:
    """Of the transactions in which is transformed: shorter than the history, longer than a restart."""
    return 5.0


@contextlib.contextmanager
def disk_watched(points: CrashPoints) -> Iterator[None]:
    """Writes and syncs of log files go by the points, as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "sync"):
            call = getattr(SimFile, name)
            through = lambda file, *arguments, n=name, c=call: points.on_disk(n, c, file, *arguments)  # noqa: E731
            patch.setattr(SimFile, name, through)
        yield


def live(strike: Strike | None = None, seed: int = 1) -> dict[str, int]:
    """One life; how often each durable call was made before the crash."""
    return simulate(seed, CrashStory(strike), config=CONFIG)
