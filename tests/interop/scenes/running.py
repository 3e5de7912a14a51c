"""Runs scenarios on a side, and keeps their traces.

    python -m tests.interop.scenes.running FOLDER [NAME …]

records them (all, or those named) from a standalone Apache Pulsar with its data below FOLDER, into traces.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pulsar

from tests.interop.agent import Agent
from tests.interop.scenes import (
    java_killing,
    killing,
    producing,
    redelivering,
    retrying,
    scalable,
    scalable_consumers,
    seeking,
    subscribing,
    transacting,
    v5_classic,
)
from tests.interop.scenes.java_world import JavaWorld
from tests.interop.scenes.servers import Side, Standalone
from tests.interop.scenes.world import SCENARIOS, Scenario, Trace, World

OF_PYTHON = (producing, subscribing, redelivering, seeking, killing)
OF_JAVA = (scalable, scalable_consumers, transacting, retrying, java_killing, v5_classic)
TRACES = Path(__file__).with_name("traces.json")
DIFFERENCES = TRACES.with_name("differences.json")
OPERATION_S = 60
KILLS_MAX = 4
TRANSACTION_S = {"plain": 0, "tc": 30, "short": 1, "long": 300}  # of clients; 0: without

_numbers = itertools.count(1)


def connect(side: Side) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(side.url, logger=quiet, operation_timeout_seconds=OPERATION_S)


def _world(side: Side, one: Scenario, client: pulsar.Client, expected: Trace | None) -> World:
    return World(side, client, f"persistent://public/default/{one.name}-{os.getpid()}-{next(_numbers)}", expected)


def run(side: Side, one: Scenario, expected: Trace | None = None) -> Trace:
    """The trace of one that does not kill."""
    client = connect(side)
    world = _world(side, one, client, expected)
    try:
        one.program(world)
    finally:
        with contextlib.suppress(pulsar.AlreadyClosed):  # a producer that was fenced is closed
            client.close()
    return world.trace


def run_killed(side: Side, some: Iterable[Scenario], expected: dict[str, Trace] | None = None) -> dict[str, Trace]:
    """The traces of those that kill: all up to their kill, which is one, and all to their end."""
    client = connect(side)
    worlds = {one.name: _world(side, one, client, (expected or {}).get(one.name)) for one in some}
    programs = [SCENARIOS[name].program(world) for name, world in worlds.items()]
    try:
        for program in programs:
            next(program)
        side.kill()
        side.start()
        for program in programs:
            assert next(program, "ended") == "ended"
    finally:
        client.close()
    return {name: world.trace for name, world in worlds.items()}


async def start_agent(side: Side, log: Path) -> Agent:
    """A process of Java, with the clients that scenarios name."""
    agent = await Agent.start(log)
    for name, most in TRANSACTION_S.items():
        more = {"transactions": most} if most else {}
        await agent.ask("client", name=name, url=side.url, **more)
    await agent.ask("classic_client", name="classic", url=side.url)
    return agent


def _java_world(side: Side, one: Scenario, agent: Agent) -> JavaWorld:
    return JavaWorld(side, agent, f"topic://public/default/{one.name}-{os.getpid()}-{next(_numbers)}")


async def run_java(side: Side, one: Scenario, agent: Agent) -> Trace:
    """As run(), of one that clients of Java drive."""
    world = _java_world(side, one, agent)
    try:
        await one.program(world)
    finally:
        await world.close()
    return world.trace


async def run_java_killed(side: Side, some: Iterable[Scenario], agent: Agent) -> dict[str, Trace]:
    """As run_killed(), of those that clients of Java drive."""
    worlds = {one.name: _java_world(side, one, agent) for one in some}
    programs = {name: SCENARIOS[name].program(world) for name, world in worlds.items()}
    for program in programs.values():
        await anext(program)
    await asyncio.to_thread(side.kill)
    await asyncio.to_thread(side.start)
    for name, program in programs.items():
        try:
            assert await anext(program, "ended") == "ended"
        except Exception as error:
            worlds[name].note("failed", f"{type(error).__name__}: {error}")
        await worlds[name].close()
    return {name: world.trace for name, world in worlds.items()}


async def run_java_killed_again(side: Standalone, some: Iterable[Scenario], agent: Agent) -> dict[str, Trace]:
    """The same, of Apache Pulsar: after a kill it stops now and then to read a segment ("We can only have a single
    waiting callback", in its log). Those in which nothing comes are run again.
    """
    found: dict[str, Trace] = {}
    left = list(some)
    for _ in range(KILLS_MAX):
        found.update(await run_java_killed(side, left, agent))
        left = [one for one in left if any(what == "failed" for what, _ in found[one.name])]
        if not left:
            break
    return found


def recorded() -> dict[str, Trace]:
    """What Apache Pulsar did, by scenario."""
    return dict(json.loads(TRACES.read_text()))


def expected() -> dict[str, Trace]:
    """The recorded traces, with the facts that are otherwise here."""
    traces = recorded()
    for name, facts in json.loads(DIFFERENCES.read_text()).items():
        for number, fact in facts.items():
            assert traces[name][int(number)][1] != fact, f"{name}: fact {number} is no difference"
            traces[name][int(number)][1] = fact
    return traces


def as_json(traces: dict[str, Trace]) -> str:
    """One fact a line."""
    scenes = []
    for name, trace in sorted(traces.items()):
        facts = ",\n".join(f"    {json.dumps(fact, ensure_ascii=False, sort_keys=True)}" for fact in trace)
        scenes.append(f'  "{name}": [\n{facts}\n  ]')
    return "{\n" + ",\n".join(scenes) + "\n}\n"


def record(folder: Path, names: list[str]) -> None:
    chosen = [SCENARIOS[name] for name in names] or list(SCENARIOS.values())
    side = Standalone(folder)
    side.start()
    found = recorded() if TRACES.exists() and names else {}
    try:
        for one in chosen:
            if not one.killed and not one.java:
                with told(one):
                    found[one.name] = run(side, one)
        if killed := [one for one in chosen if one.killed and not one.java]:
            found.update(run_killed(side, killed))
        asyncio.run(_record_java(side, [one for one in chosen if one.java], found))
    finally:
        side.close()
        TRACES.write_text(as_json(found))


async def _record_java(side: Standalone, chosen: list[Scenario], found: dict[str, Trace]) -> None:
    if not chosen:
        return
    agent = await start_agent(side, side.data / "agent.log")
    try:
        for one in chosen:
            if not one.killed:
                with told(one):
                    found[one.name] = await run_java(side, one, agent)
        if killed := [one for one in chosen if one.killed]:
            found.update(await run_java_killed_again(side, killed, agent))
    finally:
        await agent.close()


@contextlib.contextmanager
def told(one: Scenario) -> Iterator[None]:
    """Say what is done, and what went wrong: the others are recorded."""
    print(one.name, flush=True)
    try:
        yield
    except Exception as error:
        print(f"  {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        record(Path(folder), sys.argv[2:])
