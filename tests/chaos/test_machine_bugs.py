"""The run on machines can fail: brokers with a planted bug are found out on real servers, by what clients saw.

make fuzz TESTS=tests/chaos/test_machine_bugs.py MINUTES=1    # all, and their page in docs/results
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.errors import EngineError
from engine.testing.checker import check
from engine.testing.history import History
from engine.testing.workload import Sender, read_all
from tests.chaos import machine_report
from tests.chaos.machine_faults import LOST, NO_ETCD, Faults
from tests.chaos.machine_round import IDLE_S, insist
from tests.chaos.machines import FILE_AGE_S, SESSION_S, Machines
from tests.chaos.progress import Progress, acknowledged

TOPIC = "orders"
SEGMENTS = 6
STALE_S_MAX = 30.0  # until what was sent has an outcome; a bug may keep it open
SEED = int(os.environ.get("SEED") or 1)

# The bug, what strikes, and what must be broken; the last is none, since the fence is enough.
HUNTS: dict[str, tuple[Sequence[str], str]] = {
    "no_fence": ((NO_ETCD, NO_ETCD), "D1"),
    "acknowledged_before_the_put": ((LOST, LOST, LOST), "D1"),
    "named_before_the_upload": ((), "D1"),
    "lease_is_believed": ((NO_ETCD, NO_ETCD), ""),
}


async def hunt(root: Path, bug: str, seed: int) -> Counter[str]:
    """How often each rule was broken by brokers with a bug."""
    rng, sent = random.Random(f"{bug} {seed}"), Progress(acknowledged)
    history = History(asyncio.get_running_loop().time, sent.heard)
    async with Machines(root, program=("-m", "tests.chaos.planted_program", bug)) as machines:
        faults = Faults(machines, history, rng, (SESSION_S + 3.0, SESSION_S + 5.0))
        clients = [machines.client(), *(AsyncClient(machine.server.url) for machine in machines.machines)]
        await insist(lambda: clients[0].admin.create_topic(TOPIC, segments=SEGMENTS))
        senders = [Sender(history, each, f"p{n}", TOPIC, random.Random(n)) for n, each in enumerate(clients)]
        for sender in senders:
            sender.pause_s_max = 0.02
        sending = [asyncio.create_task(sender.run(100_000)) for sender in senders]
        await sent.more(200)
        for kind in HUNTS[bug][0]:
            await faults.one(kind)
            await sent.more(50)
        if not HUNTS[bug][0]:
            await asyncio.sleep(2 * FILE_AGE_S)
        for sender in senders:
            sender.stop()
        await asyncio.wait(sending, timeout=STALE_S_MAX)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await machines.restart_everything()
        for reading in (1, 2):
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(STALE_S_MAX):
                    await read_all(history, clients[0], TOPIC, reading, IDLE_S)
        for client in clients:
            await client.close()
    return Counter(violation.rule for violation in check(history.events))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_planted_bugs_are_found_on_real_servers(tmp_path: Path) -> None:
    rows = []
    for bug in HUNTS:
        (tmp_path / bug).mkdir()
        rows.append((bug, str(SEED), await hunt(tmp_path / bug, bug, SEED)))
    path = machine_report.write(
        machine_report.RESULTS if os.environ.get("MINUTES") else tmp_path, "planted", machine_report.bugs_page(rows)
    )
    print(f"{path}\n{path.read_text()}")
    for bug, _, rules in rows:
        wanted = HUNTS[bug][1]
        assert wanted in rules if wanted else not rules, f"{bug}: {rules}"
