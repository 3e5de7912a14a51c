"""A backup, one that finds nothing new, a check and a restore, beside `cp -r` and sync: wall and processor time.

    python benchmarks/backups.py [GB] [--turns 3]

Messages of 1,000 random bytes in one topic, of a directory that nothing has open. ENGINE_BENCH_DIR says where.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support import directory

import engine

BATCH = 1_000


def fill(data: str, size: float) -> None:
    """Until so many bytes are in it."""
    values = [os.urandom(1_000) for _ in range(BATCH)]
    with engine.open(data) as opened, opened.producer("t") as producer:
        for _ in range(max(1, int(size) // (BATCH * 1_000))):
            producer.send_batch(values)
        producer.flush()


def measured(*command: str) -> str:
    """Of a process of its own and its children."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{time.monotonic() - began:6.2f} s, {taken:6.2f} s of processor time"


def main() -> None:
    """Fill, then each step in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gb", type=float, nargs="?", default=2.0, help="bytes of messages, in GB (2)")
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    own = (sys.executable, "-m", "engine")
    with directory() as root:
        data, copy, backup, restored = (f"{root}/{name}" for name in ("data", "copy", "backup", "restored"))
        fill(data, chosen.gb * 1e9)
        for _ in range(chosen.turns):
            for made in (copy, backup, restored):
                shutil.rmtree(made, ignore_errors=True)
            print("cp and sync  ", measured("sh", "-c", f"cp -r {data} {copy} && sync"))
            print("first backup ", measured(*own, "backup", "create", backup, "--data", data))
            print("nothing new  ", measured(*own, "backup", "create", backup, "--data", data))
            print("verify       ", measured(*own, "backup", "verify", backup))
            print("restore      ", measured(*own, "restore", backup, "--data", restored))


if __name__ == "__main__":
    main()
