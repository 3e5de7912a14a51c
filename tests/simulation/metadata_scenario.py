"""One random life of a metadata server and its clients: it dies, is suspended, commits slowly, answers late.

Connections break, hosts are cut off, clients are suspended. What each is told is compared with the records themselves.

The judge knows every change of the records, in order, with the time at which it became visible:

    confirmed  a confirmed write has its version in the history, with its value; its condition held (M1)
    newest     a `newest` read returns a state that the key had at some time after the read began
    mirror     a `mirror` read is no older than the newest own confirmed write of the key, nor than what there was at
               any event that a watch of the client has reported before
    watch      a watch ends at the records as they are (M2)
    session    an ephemeral record does not end while its holder relies on its session (M3)
    not done   a write that ended with TimeoutError did not take place
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.errors import AlreadyClosedError, TimeoutError
from engine.metadata.keys import prefix_end
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.store import ABSENT, ANY, ConflictError, Event, EventKind, OutcomeUnknownError, Record, Session
from engine.testing.clock import LoopClock
from engine.testing.loop import VirtualLoop
from engine.testing.metadata_server import HOST, SimMetadataServer
from engine.testing.network import SimNetwork
from engine.testing.process import Process

WATCHED = "/k/"
KEYS = [f"{WATCHED}0", f"{WATCHED}1", "/q/0", "/q/1", "/q/2"]
SESSION_S = 3.0
CALL_S_MAX = 2.0


class TruthError(AssertionError):
    """A client was told what the records contradict."""


@dataclass
class State:
    """A state of one key, from a time on. `record`: None while it does not exist."""

    version: int
    at: float
    record: Record | None


class Truth:
    """The history of the records, as the store itself applies them."""

    def __init__(self, records: MemoryMetadataStore, loop: VirtualLoop) -> None:
        self.states: dict[str, list[State]] = defaultdict(lambda: [State(0, 0.0, None)])
        self._loop = loop
        table = records._table
        apply = table.apply

        def noted(changes: Any) -> None:
            changes = list(changes)
            apply(changes)
            for change in changes:
                record = None if change.new is None else change.new.record
                self.states[change.key].append(State(change.version, loop.time(), record))

        table.apply = noted  # type: ignore[method-assign]

    def state(self, key: str, version: int) -> State | None:
        """The state that this version brought about."""
        return next((state for state in self.states[key] if state.version == version), None)

    def at(self, key: str, time: float) -> State:
        """The last state of a key at a time."""
        states = self.states[key]
        return states[bisect_right([state.at for state in states], time) - 1]


@dataclass
class Client:
    """One client process and what it was told."""

    name: str
    store: RemoteMetadataStore
    process: Process
    rng: random.Random
    truth: Truth
    now: Callable[[], float]
    own: dict[str, int] = field(default_factory=dict)  # the newest own confirmed write of each key
    heard: int = 0  # the newest event
    copy: dict[str, bytes] = field(default_factory=dict)
    fresh: bool = True
    session: Session | None = None
    told: int = 0

    # -- what it does ------------------------------------------------------------------------------------------------

    async def act(self) -> None:
        """One random call."""
        await self.rng.choice((self.put, self.put, self.swap, self.remove, self.newest, self.mirror, self.mirror,
                               self.ephemeral))()  # fmt: skip

    async def put(self) -> None:
        key, value = self.rng.choice(KEYS), f"{self.name} {self.told}".encode()
        self.told += 1
        await self.written(key, value, self.store.put(key, value))

    async def swap(self) -> None:
        """Read, and write on the condition that nothing changed."""
        key = self.rng.choice(KEYS)
        record = await self.newest(key)
        value = f"{self.name} {self.told} after {record.stat.version if record else 0}".encode()
        self.told += 1
        expected = ABSENT if record is None else record.stat.version
        version = await self.written(key, value, self.store.put(key, value, expected))
        if version is None:
            return
        states = self.truth.states[key]
        before = states[[state.version for state in states].index(version) - 1]
        if (before.record is None) != (record is None) or (record is not None and before.version != expected):
            raise TruthError(f"confirmed: {self.name} wrote {key} over version {before.version}, not over {expected}")

    async def written(self, key: str, value: bytes, call: Coroutine[Any, Any, Any]) -> int | None:
        """The version of a confirmed write."""
        try:
            stat = await call
        except (ConflictError, OutcomeUnknownError, AlreadyClosedError):
            return None
        except TimeoutError:
            await asyncio.sleep(2 * CALL_S_MAX)
            if any(state.record is not None and state.record.value == value for state in self.truth.states[key]):
                raise TruthError(f"not done: {self.name} was told that {value!r} was not written") from None
            return None
        state = self.truth.state(key, stat.version)
        if state is None or state.record is None or state.record.value != value:
            raise TruthError(f"confirmed: {self.name} was told that {key} has {value!r} at version {stat.version}")
        self.own[key] = max(self.own.get(key, 0), stat.version)
        return int(stat.version)

    async def remove(self) -> None:
        key = self.rng.choice(KEYS)
        try:
            await self.store.delete(key, ANY)
        except (OutcomeUnknownError, TimeoutError):
            return
        self.own[key] = max(self.own.get(key, 0), self.truth_of_last_deletion(key))

    def truth_of_last_deletion(self, key: str) -> int:
        """No later read may show what was there before. Another write may be behind it already."""
        gone = [state.version for state in self.truth.states[key] if state.record is None]
        return min(gone[-1], self.store.version)

    async def newest(self, key: str | None = None) -> Record | None:
        key, began = key or self.rng.choice(KEYS), self.now()
        try:
            record = await self.store.newest.get(key)
        except TimeoutError:
            return None
        since = self.truth.at(key, began).version
        possible = [state.record for state in self.truth.states[key] if state.version >= since]
        if record not in possible:
            raise TruthError(f"newest: {self.name} read {record} of {key}, which had version {since} before")
        return record

    async def mirror(self) -> None:
        key, heard = self.rng.choice(KEYS), self.heard
        own = self.own.get(key, 0)
        try:
            record = await self.store.mirror.get(key)
        except TimeoutError:
            return
        behind = max((state.version for state in self.truth.states[key] if state.version <= heard), default=0)
        least = max(behind, own)
        possible = [state.record for state in self.truth.states[key] if state.version >= least]
        if record not in possible:
            raise TruthError(f"mirror: {self.name} read {record} of {key} behind version {least}")

    async def ephemeral(self) -> None:
        session, key, value = self.session, f"{WATCHED}of {self.name}", f"{self.name} lives {self.told}".encode()
        self.told += 1
        if session is not None and session.deadline > self.now():
            await self.written(key, value, self.store.put(key, value, session=session))

    # -- what goes on beside that ------------------------------------------------------------------------------------

    async def follow(self) -> None:
        shown: dict[str, bytes] = {}
        async for event in self.store.watch(WATCHED):
            self.heard = max(self.heard, event.version)
            if event.kind is EventKind.SNAPSHOT_END:
                self.copy, self.fresh = {**shown}, False
                continue
            self.note(shown if self.fresh else self.copy, event)

    def note(self, copy: dict[str, bytes], event: Event) -> None:
        if event.record is None:
            copy.pop(event.key, None)
        else:
            copy[event.key] = event.record.value

    async def keep_session(self) -> None:
        while True:
            try:
                if self.session is None:
                    self.session = await self.store.session(SESSION_S)
                await asyncio.sleep(self.rng.uniform(0.2, 1.5))
                await self.session.refresh()
            except AlreadyClosedError:
                self.session = None
            except TimeoutError:
                continue

    def check_session(self, gone: Record, at: float) -> None:
        session = self.session
        if session is not None and session.id == gone.stat.session and at < session.deadline:
            raise TruthError(
                f"session: {gone.key} of {self.name} went at {at:.3f}; it relied on it until {session.deadline}"
            )


async def live(seed: int, loop: VirtualLoop, length_s: float = 20.0) -> None:
    """One life. Raises TruthError."""
    clock, rng = LoopClock(loop), random.Random(f"{seed}/scenario")
    network = SimNetwork(random.Random(f"{seed}/network"), delay_s=(0.0001, rng.choice((0.002, 0.02))))
    records = MemoryMetadataStore(clock)
    truth = Truth(records, loop)
    server = SimMetadataServer(network, records, clock, random.Random(f"{seed}/server"))
    server.start()
    clients = []
    for i in range(3):
        process, draws = Process(f"c{i}"), random.Random(f"{seed}/client {i}")
        store = await process.do(partial(server.client, f"c{i}", draws, timeout=CALL_S_MAX))
        clients.append(Client(f"c{i}", store, process, draws, truth, loop.time))
    failures: list[BaseException] = []
    tasks = []

    def spawn(client: Client, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except TruthError as e:
                failures.append(e)

        tasks.append(asyncio.ensure_future(client.process.do(guarded)))

    async def busy(client: Client) -> None:
        while loop.time() < length_s:
            await client.act()
            await asyncio.sleep(client.rng.uniform(0, 0.02))

    watchdog = asyncio.ensure_future(_watch_sessions(truth, clients, loop, failures))
    for client in clients:
        spawn(client, client.follow)
        spawn(client, client.keep_session)
        for _ in range(3):
            spawn(client, lambda client=client: busy(client))  # type: ignore[misc]
    await _strike(server, network, clients, rng, loop, length_s)
    await asyncio.sleep(4 * CALL_S_MAX)
    present = {record.key: record.value for record in await records.list(WATCHED, prefix_end(WATCHED))}
    for client in clients:
        if client.copy != present:
            failures.append(TruthError(f"watch: the watch of {client.name} ends at {client.copy}, not at {present}"))
    watchdog.cancel()
    for client in clients:
        await client.process.do(client.store.close)
        await client.process.kill()
    await server.kill()
    await asyncio.gather(*tasks, watchdog, return_exceptions=True)
    if failures:
        raise failures[0]


async def _watch_sessions(
    truth: Truth, clients: list[Client], loop: VirtualLoop, failures: list[BaseException]
) -> None:
    """Look at ephemeral records that went, while their holders may still rely on them."""
    seen: dict[str, int] = defaultdict(int)
    while True:
        await asyncio.sleep(0.005)
        for client in clients:
            states = truth.states[f"{WATCHED}of {client.name}"]
            for at in range(max(seen[client.name], 1), len(states)):
                before = states[at - 1].record
                if states[at].record is None and before is not None:
                    try:
                        client.check_session(before, states[at].at)
                    except TruthError as e:
                        failures.append(e)
            seen[client.name] = len(states)


async def _strike(
    server: SimMetadataServer, network: SimNetwork, clients: list[Client], rng: random.Random, loop: VirtualLoop,
    length_s: float,
) -> None:  # fmt: skip
    """Break something now and then, until the time is over; then heal everything."""
    while loop.time() < length_s:
        await asyncio.sleep(rng.uniform(0.2, 2.0))
        victim, span = rng.choice(clients), rng.choice((0.05, 0.5, 3.0, 6.0)) * rng.uniform(0.5, 1.0)
        match rng.choice(("die", "die", "reset", "reset", "apart", "stop server", "stop client", "slow", "late")):
            case "die":
                await server.kill()
                await asyncio.sleep(span)
                server.start()
            case "reset":
                network.reset(victim.name, HOST)
            case "apart":
                network.partition(victim.name, HOST)
                await asyncio.sleep(span)
                network.heal()
            case "stop server":
                server.suspend()
                await asyncio.sleep(span)
                server.resume()
            case "stop client":
                victim.process.suspend()
                await asyncio.sleep(span)
                victim.process.resume()
            case "slow":
                server.tune(commit_s_max=rng.choice((0.0, 0.01, 0.1)))
            case _:
                server.tune(late_s_max=rng.choice((0.0, 0.05, 0.3)))
    server.tune()


def run(seed: int, length_s: float = 20.0) -> None:
    """Run one life on virtual time. The same seed gives the same life. Raises TruthError."""
    loop = VirtualLoop()
    loop.run(live(seed, loop, length_s), 600.0)
    assert not loop.problems, loop.problems
