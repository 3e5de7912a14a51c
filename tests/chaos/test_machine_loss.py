"""Black box: machines are lost with their disks, stores are killed, lines are cut, on real servers; the checker judges.

make fuzz TESTS=tests/chaos/test_machine_loss.py MINUTES=60 SEED=1      an hour, and its page in docs/results
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos import machine_report
from tests.chaos.machine_faults import LEADER, LOST, NO_CLIENTS, NO_ETCD, NO_S3, S3_KILLED, Faults
from tests.chaos.machine_round import Round, Totals
from tests.chaos.machines import Machines

ANY = ""  # or two at a time
STRIKES = (6, 12)  # in a round
FUZZ_MINUTES = 2.0
MINUTES = float(os.environ.get("MINUTES") or 0)
SEED = int(os.environ.get("SEED") or 1)


async def play(
    machines: Machines, totals: Totals, seed: str, seconds: tuple[float, float], kinds: Sequence[str]
) -> None:
    """A round with these faults, one after the other. The history of one that shows something is kept."""
    rng = random.Random(seed)
    playing = Round(machines, f"r{totals.rounds}", rng)
    faults = Faults(machines, playing.history, rng, seconds)

    async def disturb() -> None:
        for kind in kinds:
            await playing.sent.more(rng.randint(5, 40))
            await (faults.strike() if kind == ANY else faults.one(kind))

    try:
        await playing.run(disturb)
        totals.violations += [f"{seed}: {each}" for each in await playing.judge()]
    except (AssertionError, TimeoutError) as e:
        unreadable = machines.s3.unreadable()
        why = f"; the S3 server cannot read {unreadable} objects that it has stored" if unreadable else ""
        with contextlib.suppress(AssertionError):  # not all members answer
            why += f"; {differing}" if (differing := machines.etcd.disagreement()) else ""
        totals.violations.append(f"{seed}: L2: it did not end: {e!r}{why}")
    finally:
        totals.add(playing.history.events)
        totals.faults += faults.counts
        if totals.violations:
            playing.keep(machines.root / "history.jsonl")
    if not totals.violations:
        await playing.close()


@pytest.mark.timeout(600)
async def test_acknowledged_messages_survive_the_loss_of_machines_with_their_disks(tmp_path: Path) -> None:
    """D1 to D4, O1, O2, C1 to C3, T1, T2, L2: real brokers, three members of etcd, and S3."""
    totals, kinds = Totals(), (LOST, LEADER, NO_ETCD, S3_KILLED, NO_S3, NO_CLIENTS)
    async with Machines(tmp_path) as machines:
        await play(machines, totals, "41", (0.2, 0.8), kinds)
    assert totals.violations == []
    assert set(totals.faults) == set(kinds)
    for kind in ("stream", "queue", "reader", "by a transformer"):
        assert totals.counts[f"messages received, {kind}"] > 10
    assert totals.counts["transactions committed"] > 1
    assert totals.counts["splits"] > 0


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_the_loss_of_machines(tmp_path: Path) -> None:
    """Round after round, for MINUTES; the page of the run goes to docs/results, or beside its data without MINUTES."""
    totals, began = Totals(), time.monotonic()
    async with Machines(tmp_path) as machines:
        while time.monotonic() - began < 60 * (MINUTES or FUZZ_MINUTES) and not totals.violations:
            seed = f"{SEED}/{totals.rounds}"
            await play(machines, totals, seed, (0.2, 8.0), [ANY] * random.Random(seed).randint(*STRIKES))
            minutes = (time.monotonic() - began) / 60
            print(f"{minutes:.1f} minutes, round {seed}: {totals.faults.total()} faults in all", flush=True)
    minutes = (time.monotonic() - began) / 60
    text = machine_report.page(totals, f"{SEED}/0 to {SEED}/{totals.rounds - 1}", minutes)
    path = machine_report.write(machine_report.RESULTS if MINUTES else tmp_path, "machines", text)
    print(f"{path}\n{text}")
    assert totals.violations == [], f"data in {tmp_path}"
