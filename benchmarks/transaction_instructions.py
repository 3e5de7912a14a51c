"""What a transaction costs by instructions, beside the same messages without one (bar P15).

    python benchmarks/transaction_instructions.py                      # each way once, instructions a group
    python benchmarks/transaction_instructions.py --way many --base ../base/.venv/bin/python
    python benchmarks/transaction_instructions.py --calls --way many   # calls of Python functions, by `cProfile`

A group is 100 messages of 100 B over four segments, as in `transaction_rates.py`. Broker and client are in one process,
on one loop, over TCP on 127.0.0.1, with durability "os". How many transactions meet in a turn of the loop, and so share
frames and commits, differs from run to run, which moves a count by some 5 % on a quiet machine and 10 % on a busy one;
`--turns` repeats it.

    many   32 transactions at a time        many-without   the same groups, 32 at a time, without a transaction
    one    one transaction at a time        one-without    the same groups, one at a time, without a transaction
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

sys.path.append(str(Path(__file__).resolve().parent))  # a benchmark may run as a script

from small_entries import TINY, collected, count_instructions, print_calls
from support import rows
from transaction_rates import AT_ONCE, GROUP, SEGMENTS, send_groups

import engine

WAYS = {"many": (AT_ONCE, True), "many-without": (AT_ONCE, False), "one": (1, True), "one-without": (1, False)}
WARM_ROUNDS = 1 if TINY else 5
GROUPS = 2 if TINY else 320
SWEEP_S = 60.0  # under valgrind a second has room for few transactions: what is done twice in each would weigh too much


async def measure(way: str, groups: int, counted: bool, profile: cProfile.Profile | None) -> None:
    """Run so many groups, counted by valgrind, or profiled, behind a warm-up."""
    at_once, transactional = WAYS[way]
    sample, warm = rows(groups * GROUP, 100), rows(min(groups, AT_ONCE) * GROUP, 100)
    with tempfile.TemporaryDirectory() as data:
        config = {"durability": "os", "transaction_sweep_interval": SWEEP_S}
        options: dict[str, Any] = {"listen": "127.0.0.1:0", "shared": False, "config": config}
        async with engine.open_async(data, **options) as server:
            await server.admin.create_topic("groups", segments=SEGMENTS)
            async with engine.AsyncClient(server.service_url) as client, client.producer("groups") as producer:
                for _ in range(WARM_ROUNDS):
                    await send_groups(client, producer, warm, at_once, transactional)
                gc.collect()
                gc.freeze()
                if counted:
                    count_instructions("on")
                if profile is not None:
                    profile.enable()
                await send_groups(client, producer, sample, at_once, transactional)
                if profile is not None:
                    profile.disable()
                if counted:
                    count_instructions("off")


def instructions(python: str, way: str, groups: int) -> float:
    """Of one group."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no"]
    words = [*valgrind, python, __file__, "--way", way, "--groups", str(groups), "--counted"]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=1200)
    return collected(run.stderr) / groups


def calls(way: str, groups: int) -> None:
    """Print the functions of Python that a group calls, the most expensive first."""
    profile = cProfile.Profile(builtins=False)
    uvloop.run(measure(way, groups, False, profile))
    print_calls(profile, way, groups, "a group", by=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=list(WAYS), action="append")
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--base", help="the Python of another build, to be measured in turns with this one")
    parser.add_argument("--calls", action="store_true", help="count calls of Python functions instead")
    parser.add_argument("--counted", action="store_true", help="under valgrind: one run, in this process")
    given = parser.parse_args()
    if given.counted:
        uvloop.run(measure(given.way[0], given.groups, True, None))
        return
    pythons = [sys.executable] if given.base is None else [given.base, sys.executable]
    for way in given.way or list(WAYS):
        if given.calls:
            calls(way, given.groups)
            continue
        turns = [[instructions(python, way, given.groups) for python in pythons] for _ in range(given.turns)]
        for i, python in enumerate(pythons):
            of = [turn[i] / 1e6 for turn in turns]
            print(f"{way:13} {statistics.median(of):6.3f} M ({min(of):.3f} to {max(of):.3f})  {python}", flush=True)


if __name__ == "__main__":
    main()
