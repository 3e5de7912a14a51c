"""Runs scenarios on a side, and keeps their traces.

    python -m tests.interop.scenes.running FOLDER [NAME …]

records them (all, or those named) from a standalone Apache Pulsar with its data below FOLDER, into traces.json.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pulsar

from tests.interop.agent import Agent
from tests.interop.scenes import killing, producing, redelivering, seeking, subscribing
from tests.interop.scenes.scalable import SCALABLE, ScalableWorld
from tests.interop.scenes.servers import Side, Standalone
from tests.interop.scenes.world import SCENARIOS, Scenario, Trace, World

MODULES = (producing, subscribing, redelivering, seeking, killing)
TRACES = Path(__file__).with_name("traces.json")
OPERATION_S = 60

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
            next(program)  # type: ignore[arg-type]
        side.kill()
        side.start()
        for program in programs:
            assert next(program, "ended") == "ended"  # type: ignore[arg-type]
    finally:
        client.close()
    return {name: world.trace for name, world in worlds.items()}


async def run_scalable(side: Side, agent: Agent, name: str) -> Trace:
    """The trace of one of scalable topics."""
    world = ScalableWorld(side, agent, f"topic://public/default/{name}-{os.getpid()}-{next(_numbers)}")
    try:
        await SCALABLE[name][1](world)
    finally:
        await world.close()
    return world.trace


def recorded() -> dict[str, Trace]:
    return dict(json.loads(TRACES.read_text()))


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
            if not one.killed:
                print(one.name, flush=True)
                try:
                    found[one.name] = run(side, one)
                except Exception as error:  # what went wrong is seen, and the others are recorded
                    print(f"  {type(error).__name__}: {error}", flush=True)
        found.update(run_killed(side, [one for one in chosen if one.killed]))
    finally:
        side.close()
        TRACES.write_text(as_json(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        record(Path(folder), sys.argv[2:])
