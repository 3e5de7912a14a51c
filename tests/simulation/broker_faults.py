"""What befalls brokers that share a disk and a metadata store: each fault strikes one of them, lasts, and heals."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from typing import Any

from engine.errors import EngineError
from engine.metadata import keys
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.testing.cluster import SimBroker, SimCluster
from engine.testing.disk import Fault

TOPIC = "orders"
DEATHS = ("kill", "power cut", "isolate", "freeze")
FAULTS = (
    *DEATHS,
    *DEATHS,
    *["at a phase"] * 5,
    "close",
    "metadata out of reach",
    "slow metadata",
    "unsure metadata",
    "brokers apart",
    "client apart",
    "reset",
    "stalled disk",
    "sync fails",
    "disk full",
    "clock jump",
)
# What operators and the balancer do; not among FAULTS, so that the seeds of these stay what they are.
MOVES = ("unload", "unload", "unload", "drain", "join", "balance")
# Where the brokers share no disk, but an object store.
OBJECT_DEATHS = ("kill", "lost machine", "isolate", "freeze")
OBJECT_FAULTS = (
    *OBJECT_DEATHS,
    *OBJECT_DEATHS,
    *["at a phase"] * 5,
    *["troubled store"] * 4,
    "close",
    "metadata out of reach",
    "slow metadata",
    "unsure metadata",
    "client apart",
    "stalled disk",
    "sync fails",
    "disk full",
    "clock jump",
    "unload",
    "drain",
)
STORE_RATES = ("refuse_rate", "fail_rate", "stored_fail_rate", "hang_rate", "late_rate", "read_fail_rate")
PHASES = ("children", "children", "terminate", "terminate", None, "undo")  # None: the change is committed, or undone
VICTIMS = ("leader", "owner", "any")
PHASE_S_MAX = 6.0
CHANGE_S = 0.05  # about as long as a phase takes


class Spy:
    """Reads the metadata store behind everybody's back."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._topic = TopicName.parse(TOPIC)

    def _broker(self, url: str | None) -> SimBroker | None:
        return next((b for b in self._cluster.brokers.values() if b.url == url), None)

    async def leader(self) -> SimBroker | None:
        """Who leads the topic, if anybody does."""
        record = await self._cluster.metadata.get(keys.controller(self._topic))
        return None if record is None else self._broker(record.value.decode())

    async def owner(self) -> SimBroker | None:
        """Who owns some active segment."""
        record = await self._cluster.metadata.get(keys.topic(self._topic))
        if record is None:
            return None
        segment = self._cluster.rng(f"owner {record.stat.version}").choice(SegmentLayout.from_json(record.value).active)
        name = self._topic.segment(segment.hash_range, segment.segment_id)
        owned = await self._cluster.metadata.get(keys.segment(name))
        return None if owned is None else self._broker(json.loads(owned.value)["owner"])

    async def phase(self, wanted: str | None) -> bool:
        """Wait until a change is seen in that phase (None: until one has ended); False when it never is."""
        key, changing = keys.topic(self._topic), False
        watch = self._cluster.metadata.watch(key)
        try:
            async with asyncio.timeout(PHASE_S_MAX):
                async for event in watch:
                    if event.record is None or event.key != key:
                        continue
                    change = SegmentLayout.change_in(event.record.value)
                    if (changing if wanted is None else True) and wanted == (change and change.phase):
                        return True
                    changing = change is not None
        except TimeoutError:
            pass
        finally:
            watch.close()
        return False


class Nemesis:
    """Strikes. After heal() all brokers run and reach each other, the store and every client."""

    def __init__(self, cluster: SimCluster, clients: tuple[str, ...]) -> None:
        self.spy = Spy(cluster)
        self._cluster = cluster
        self._clients = clients
        self._rng = cluster.rng("nemesis")

    def _say(self, text: str) -> None:
        self._cluster.history.record("nemesis", "fault", text=text)

    async def victim(self, who: str) -> SimBroker:
        """The broker in that role, or any."""
        found = await (self.spy.leader() if who == "leader" else self.spy.owner()) if who != "any" else None
        return found or self._rng.choice(list(self._cluster.brokers.values()))

    async def strike(self, kind: str, who: str, seconds: float) -> None:
        """One fault, from its begin to its end."""
        if kind == "at a phase":
            deaths = DEATHS if self._cluster.objects is None else OBJECT_DEATHS
            await self.strike_at(self._rng.choice(PHASES), self._rng.choice(deaths), who, seconds)
            return
        broker = await self.victim(who)
        if not broker.running:
            return
        self._say(f"{kind}: {broker.name} ({who}), {seconds:g} s")
        await _ACTS[kind](self, broker, seconds)
        self._say(f"{kind}: {broker.name} healed")

    async def strike_at(self, phase: str | None, kind: str, who: str, seconds: float) -> None:
        """The same when a change comes to a phase, or soon after."""
        self._say(f"waits for {phase}")
        await self.spy.phase(phase)
        await asyncio.sleep(self._rng.choice((0.0, self._rng.uniform(0, CHANGE_S))))
        await self.strike(kind, who, seconds)

    # Each act is called with a broker that runs; another act may end it meanwhile.

    async def _die(self, broker: SimBroker, seconds: float) -> None:
        await broker.kill()
        await self._restart(broker, seconds)

    async def _lose_power(self, broker: SimBroker, seconds: float) -> None:
        await broker.power_cut()
        await self._restart(broker, seconds)

    async def _lose_machine(self, broker: SimBroker, seconds: float) -> None:
        await broker.lose_machine()
        await self._restart(broker, seconds)

    async def _trouble_store(self, broker: SimBroker, seconds: float) -> None:
        """It refuses, fails, stores and fails, hangs, stores late."""
        store = self._cluster.objects
        rate = self._rng.choice(STORE_RATES)
        setattr(store, rate, self._rng.choice((0.05, 0.2, 0.6)))
        store.delay_s_max = self._rng.choice((0.0, 0.05, 0.5))
        await asyncio.sleep(seconds)
        setattr(store, rate, 0.0)
        store.delay_s_max = 0.0

    async def _close(self, broker: SimBroker, seconds: float) -> None:
        closing = asyncio.ensure_future(broker.close())
        await asyncio.wait([closing], timeout=30)
        assert closing.done(), f"{broker.name} did not close within 30 s"
        if not closing.cancelled():  # else it was killed meanwhile
            closing.result()
        await self._restart(broker, seconds)

    async def _restart(self, broker: SimBroker, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if broker.process is None:
            await broker.start()

    async def _isolate(self, broker: SimBroker, seconds: float) -> None:
        broker.isolate()
        await asyncio.sleep(seconds)
        broker.rejoin()

    async def _freeze(self, broker: SimBroker, seconds: float) -> None:
        """Whatever it was about to do, and whatever is sent to it, it does when it comes back; news may come late."""
        metadata = broker.metadata
        broker.suspend()
        await asyncio.sleep(seconds)
        metadata.delay_s_max = self._rng.choice((0.0, 0.1, 1.0))
        broker.resume()
        await asyncio.sleep(1.0)
        metadata.delay_s_max = 0.0

    async def _lose_metadata(self, broker: SimBroker, seconds: float) -> None:
        metadata = broker.metadata
        metadata.partition()
        await asyncio.sleep(seconds)
        metadata.heal()

    async def _slow_metadata(self, broker: SimBroker, seconds: float) -> None:
        metadata = broker.metadata
        metadata.delay_s_max = self._rng.choice((0.05, 0.5, 2.0))
        await asyncio.sleep(seconds)
        metadata.delay_s_max = 0.0

    async def _unsure_metadata(self, broker: SimBroker, seconds: float) -> None:
        metadata = broker.metadata
        metadata.unknown_rate = self._rng.uniform(0.05, 0.5)
        await asyncio.sleep(seconds)
        metadata.unknown_rate = 0.0

    async def _part_brokers(self, broker: SimBroker, seconds: float) -> None:
        others = [name for name in self._cluster.brokers if name != broker.name]
        self._cluster.network.partition(broker.name, self._rng.choice(others))
        await asyncio.sleep(seconds)
        self._cluster.network.heal()

    async def _part_client(self, broker: SimBroker, seconds: float) -> None:
        self._cluster.network.partition(broker.name, self._rng.choice(self._clients))
        await asyncio.sleep(seconds)
        self._cluster.network.heal()

    async def _reset(self, broker: SimBroker, seconds: float) -> None:
        for other in (*self._cluster.brokers, *self._clients):
            if other != broker.name:
                self._cluster.network.reset(other, broker.name)

    async def _stall_disk(self, broker: SimBroker, seconds: float) -> None:
        workers = broker.workers
        workers.stall()
        await asyncio.sleep(seconds)
        workers.resume()

    async def _fail_sync(self, broker: SimBroker, seconds: float) -> None:
        broker.disk.faults.append(Fault("sync", path=".log", after=self._rng.randint(0, 3)))

    async def _fill_disk(self, broker: SimBroker, seconds: float) -> None:
        after = self._rng.randint(0, 3)
        broker.disk.faults.append(Fault("write", errno.ENOSPC, ".log", after=after, times=2))

    async def _jump_clock(self, broker: SimBroker, seconds: float) -> None:
        self._cluster.clock.skew_ms += self._rng.randint(-3_600_000, 3_600_000)

    async def _unload(self, broker: SimBroker, seconds: float) -> None:
        """Its segments go to other brokers, one after the other."""
        await self._operate(broker, lambda serving: serving.admin.unload_topic(TOPIC))

    async def _drain(self, broker: SimBroker, seconds: float) -> None:
        await self._operate(broker, lambda serving: serving.admin.drain_broker(broker.url))
        await asyncio.sleep(seconds)
        await self._operate(broker, lambda serving: serving.admin.undrain_broker(broker.url))

    async def _balance(self, broker: SimBroker, seconds: float) -> None:
        await self._operate(broker, lambda serving: serving.admin.balance_brokers())

    async def _join(self, broker: SimBroker, seconds: float) -> None:
        """A new broker comes, gets segments, and leaves in order."""
        name = f"b{len(self._cluster.brokers) + 1}"
        joined = await self._cluster.start(name)
        await self._operate(joined, lambda serving: serving.admin.balance_brokers())
        await asyncio.sleep(seconds)
        if joined.running:
            await self._close(joined, seconds)

    async def _operate(self, broker: SimBroker, operation: Callable[[Any], Awaitable[Any]]) -> None:
        """An operation on the broker, which may be refused, or die with it."""
        process, serving = broker.process, broker.broker
        if process is None or serving is None:
            return
        asked = asyncio.ensure_future(process.do(lambda: operation(serving)))
        await asyncio.wait([asked], timeout=60)
        asked.cancel()
        if asked.done() and not asked.cancelled() and (error := asked.exception()) is not None:
            assert isinstance(error, EngineError), error
            self._say(f"refused: {error}")

    async def _rest(self, broker: SimBroker, seconds: float) -> None:
        """Nothing."""

    async def heal(self) -> None:
        """End whatever lasts."""
        self._cluster.network.heal()
        self._cluster.clock.skew_ms = 0
        if (store := self._cluster.objects) is not None:
            store.delay_s_max = 0.0
            for rate in STORE_RATES:
                setattr(store, rate, 0.0)
        for broker in self._cluster.brokers.values():
            broker.disk.faults.clear()
            broker.resume()
            if broker.process is None:
                await broker.start()
            broker.metadata.heal()
            broker.metadata.delay_s_max = broker.metadata.unknown_rate = 0.0


_ACTS = {
    "kill": Nemesis._die,
    "power cut": Nemesis._lose_power,
    "lost machine": Nemesis._lose_machine,
    "troubled store": Nemesis._trouble_store,
    "close": Nemesis._close,
    "isolate": Nemesis._isolate,
    "freeze": Nemesis._freeze,
    "metadata out of reach": Nemesis._lose_metadata,
    "slow metadata": Nemesis._slow_metadata,
    "unsure metadata": Nemesis._unsure_metadata,
    "brokers apart": Nemesis._part_brokers,
    "client apart": Nemesis._part_client,
    "reset": Nemesis._reset,
    "stalled disk": Nemesis._stall_disk,
    "sync fails": Nemesis._fail_sync,
    "disk full": Nemesis._fill_disk,
    "clock jump": Nemesis._jump_clock,
    "unload": Nemesis._unload,
    "drain": Nemesis._drain,
    "balance": Nemesis._balance,
    "join": Nemesis._join,
    "nothing": Nemesis._rest,
}
