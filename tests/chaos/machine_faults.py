"""What befalls machines: brokers, the leader of etcd, the S3 server, and the lines between them; each fault heals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from engine.testing.history import History
from tests.chaos.machines import SESSION_S, Machine, Machines
from tests.kit.line import Line

LOST = "broker killed, its directory removed"
KILLED = "broker killed"
STOPPED = "broker stopped, and goes on"
LEADER = "leader of etcd killed"
S3_KILLED = "S3 server killed"
S3_STOPPED = "S3 server stopped, and goes on"
NO_ETCD = "broker cut off from etcd"
NO_S3 = "broker cut off from S3"
NO_STORES = "broker cut off from etcd and S3"
NO_CLIENTS = "broker cut off from clients and other brokers"
BROKEN = "all connections of a broker broken"
KINDS = (
    *(LOST, LOST, LOST, KILLED, STOPPED, LEADER, LEADER, S3_KILLED, S3_KILLED),
    *(S3_STOPPED, NO_ETCD, NO_ETCD, NO_S3, NO_S3, NO_STORES, NO_CLIENTS, NO_CLIENTS, BROKEN),
)
TOGETHER = 0.25  # how often two happen at a time


class Faults:
    """Strikes. `counts`: by kind. `seconds`: how long one lasts, from and to."""

    def __init__(self, machines: Machines, history: History, rng: random.Random, seconds: tuple[float, float]) -> None:
        self.counts: Counter[str] = Counter()
        self._machines = machines
        self._history = history
        self._rng = rng
        self._seconds = seconds

    async def strike(self, kinds: Sequence[str] = KINDS) -> None:
        """One fault of these kinds, or two at a time, from begin to end."""
        some = [self._rng.choice(kinds)]
        if self._rng.random() < TOGETHER:
            some.append(self._rng.choice(kinds))
        await asyncio.gather(*map(self.one, some))

    async def one(self, kind: str) -> None:
        """One fault; left out where the server is struck by another one already."""
        machine = self._rng.choice(self._machines.machines)
        free = self._machines.etcd_free if kind == LEADER else self._machines.s3_free
        free = free if kind in (LEADER, S3_KILLED, S3_STOPPED) else machine.free
        seconds = self._rng.uniform(*self._seconds)
        if free.locked():
            return
        async with free:
            self.counts[kind] += 1
            number = self._machines.machines.index(machine)
            self._history.record("nemesis", "fault", text=f"{kind}; broker {number}, {seconds:.1f} s")
            await _ACTS[kind](self, machine, seconds)
            self._history.record("nemesis", "fault", text=f"{kind}; healed")

    async def _lose(self, machine: Machine, seconds: float) -> None:
        await self._machines.lose(machine)
        await self._start(machine, seconds)

    async def _kill(self, machine: Machine, seconds: float) -> None:
        await machine.kill()
        await self._start(machine, seconds)

    async def _start(self, machine: Machine, seconds: float) -> None:
        """At once, or later; others may have replaced it then."""
        await asyncio.sleep(self._rng.choice((0.0, seconds)))
        await machine.start()

    async def _stop(self, machine: Machine, seconds: float) -> None:
        os.kill(machine.server.pid, signal.SIGSTOP)
        await asyncio.sleep(self._rng.choice((seconds, SESSION_S + seconds)))
        os.kill(machine.server.pid, signal.SIGCONT)

    async def _kill_leader(self, machine: Machine, seconds: float) -> None:
        etcd = self._machines.etcd
        try:
            leader = await asyncio.to_thread(lambda: etcd.leader)
        except (AssertionError, IndexError):  # there is none just now
            leader = self._rng.choice(etcd.members)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(etcd.start)

    async def _kill_s3(self, machine: Machine, seconds: float) -> None:
        s3 = self._machines.s3
        await asyncio.to_thread(s3.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(s3.start)

    async def _stop_s3(self, machine: Machine, seconds: float) -> None:
        self._machines.s3.pause()
        await asyncio.sleep(seconds)
        self._machines.s3.resume()

    async def _cut_from_etcd(self, machine: Machine, seconds: float) -> None:
        await self._cut(machine.etcd, seconds)

    async def _cut_from_s3(self, machine: Machine, seconds: float) -> None:
        await self._cut([machine.s3], seconds)

    async def _cut_from_stores(self, machine: Machine, seconds: float) -> None:
        await self._cut([machine.s3, *machine.etcd], seconds)

    async def _cut_from_clients(self, machine: Machine, seconds: float) -> None:
        await self._cut([machine.clients], seconds)

    async def _cut(self, lines: Sequence[Line], seconds: float) -> None:
        """Refused, or silent; what was silent goes on, or is broken then."""
        refused, broken = self._rng.random() < 0.3, self._rng.random() < 0.5
        for line in lines:
            line.open = not refused
            (line.cut if refused else line.hold)()
        await asyncio.sleep(seconds)
        for line in lines:
            if broken:
                line.cut()
            line.open = True
            line.flow()

    async def _break(self, machine: Machine, seconds: float) -> None:
        for line in machine.lines:
            line.cut()


_ACTS: dict[str, Callable[[Faults, Machine, float], Awaitable[None]]] = {
    LOST: Faults._lose,
    KILLED: Faults._kill,
    STOPPED: Faults._stop,
    LEADER: Faults._kill_leader,
    S3_KILLED: Faults._kill_s3,
    S3_STOPPED: Faults._stop_s3,
    NO_ETCD: Faults._cut_from_etcd,
    NO_S3: Faults._cut_from_s3,
    NO_STORES: Faults._cut_from_stores,
    NO_CLIENTS: Faults._cut_from_clients,
    BROKEN: Faults._break,
}
