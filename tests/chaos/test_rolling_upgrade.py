"""Black box: brokers on etcd and S3 are upgraded one after the other, by SIGTERM, under load; the checker judges."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from engine.clock import SystemClock
from engine.control.base.levels import Level
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.testing.checker import check, describe
from engine.testing.history import History
from engine.testing.workload import Sender, read_all
from tests.chaos.machine_round import IDLE_S, insist
from tests.chaos.machines import Machines
from tests.chaos.progress import Progress, acknowledged
from tests.cli.test_cli_cluster import NEWER

TOPIC = "orders"
SEGMENTS = 6
BETWEEN = 40  # sends that are acknowledged between two steps
RAISED_S_MAX = 60.0


async def level(store: EtcdMetadataStore) -> int:
    found = await store.get(keys.LEVEL)
    assert found is not None
    return Level.of(found).level


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_brokers_are_upgraded_one_by_one_under_load_and_then_the_level_rises(tmp_path: Path) -> None:
    """D1, D2, O1, and the version handshake. A broker that was ended in order needs no lapse of its session."""
    sent = Progress(acknowledged)
    history = History(asyncio.get_running_loop().time, sent.heard)
    async with Machines(tmp_path, members=1) as machines:
        url = machines.etcd.url(machines.prefix)
        store = await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random(1))
        client = machines.client()
        await insist(lambda: client.admin.create_topic(TOPIC, segments=SEGMENTS))
        senders = [Sender(history, client, f"p{n}", TOPIC, random.Random(n)) for n in range(2)]
        sending = [asyncio.create_task(sender.run(100_000)) for sender in senders]
        for machine in machines.machines:
            await sent.more(BETWEEN)
            assert await level(store) == 1, "while a broker is of the earlier release"
            await machine.server.close()  # it hands over, and ends by itself
            shutil.rmtree(machine.server.data)
            await sent.more(BETWEEN)
            machine.server.program = ("-c", NEWER)
            await machine.start()
        async with asyncio.timeout(RAISED_S_MAX):
            while await level(store) != 2:  # noqa: ASYNC110 - etcd is asked
                await asyncio.sleep(0.2)
        await sent.more(BETWEEN)
        for sender in senders:
            sender.stop()
        await asyncio.gather(*sending)
        for reading in (1, 2):
            await read_all(history, client, TOPIC, reading, IDLE_S)
        await client.close()
        await store.close()
    violations = check(history.events)
    assert not violations, describe(violations)
