"""What retention costs where there are many slow topics: log files and syncs, hour by hour, on a clock that jumps.

    python benchmarks/slow_topics.py --topics 10000 --hours 48

Each topic gets one message every `--every` hours, and is closed in between, as one that is idle. Syncs are counted, and
not carried out. The table says for each hour: log files, bytes, and syncs for a topic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

from engine._native.produce.batcher import Batcher
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.model.names import TopicName
from engine.storage.disk.disk import OsDisk, OsFile
from engine.testing.clock import FakeClock

HOUR_S = 3600.0


class CountedFile(OsFile):
    """Counts syncs in place of making them."""

    counts: Counter[str]

    def sync(self) -> None:
        self.counts["syncs"] += 1


class CountedDisk(OsDisk):
    """A disk of such files."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def _counted(self, file: OsFile) -> OsFile:
        counted = CountedFile(file.path, os.dup(file.fileno()))
        counted.counts = self.counts
        file.close()
        return counted

    def create(self, path: str) -> OsFile:
        self.counts["created"] += 1
        return self._counted(super().create(path))

    def open(self, path: str) -> OsFile:
        return self._counted(super().open(path))

    def unlink(self, path: str) -> None:
        self.counts["unlinked"] += 1
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.counts["directory syncs"] += 1


def an_entry(sequence: int) -> bytes:
    """Of one message of 100 bytes."""
    batcher = Batcher(b"p", first_sequence=sequence, pending_bytes_max=1 << 20)
    batcher.set_layout([0], [0], [[65535]])
    batcher.add(bytes(100), None)
    batcher.seal_all()
    return bytes(batcher.take()[0].data)


async def measure(root: Path, topics: int, hours: int, every: int, retention_s: float) -> None:
    """Print a line for each hour."""
    disk, clock = CountedDisk(), FakeClock()
    config = BrokerConfig(retention_time=retention_s, segment_idle_time=None, retention_interval=HOUR_S / 120)
    broker = Broker(root, config=config, disk=disk, clock=clock, rng=random.Random(1))
    await broker.start()
    names = [TopicName("public", "default", f"slow-{i:06}") for i in range(topics)]
    for name in names:
        await broker.admin.create_topic(str(name))
    opened = 0
    load = broker.segments._load

    async def counted(spec, create):
        nonlocal opened
        opened += 1
        return await load(spec, create)

    broker.segments._load = counted  # type: ignore[method-assign]
    print("hour     files    bytes/topic  file syncs/topic  directory syncs/topic  opens/topic")
    for hour in range(hours):
        before, opened, passed_s = disk.counts.copy(), 0, 0.0
        for i in range(hour % every, topics, every):
            spec = await broker.service.segment_spec(names[i], 0)
            hosted = await broker.segments.open(spec, create=True)
            await hosted.segment.append(an_entry(hour // every))
            if i % 100 == hour % 100:  # rounds of retention, with the time that lies between two of them
                clock.advance(config.retention_interval)
                passed_s += config.retention_interval
                await broker.parts.retention.sweep()
            await broker.segments.unload(hosted)
        clock.advance(HOUR_S - passed_s)
        broker.parts.retention._sweeps = 0  # the search that comes once in an hour
        await broker.parts.retention.sweep()
        files, size = files_below(root)
        done = disk.counts - before
        print(
            f"{hour:4} {files:9,} {size / topics:14,.0f} {done['syncs'] / topics:17.2f} "
            f"{done['directory syncs'] / topics:22.2f} {opened / topics:12.2f}",
            flush=True,
        )
    await broker.close()


def files_below(root: Path) -> tuple[int, int]:
    """How many log files, and their bytes."""
    sizes = [file.stat().st_size for file in root.glob("segments/*/*/*/*/*.log")]
    return len(sizes), sum(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--hours", type=int, default=48)
    parser.add_argument("--every", type=int, default=24, help="hours between two messages of a topic")
    parser.add_argument("--retention-hours", type=float, default=24.0)
    said = parser.parse_args()
    retention_s = said.retention_hours * HOUR_S
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), said.topics, said.hours, said.every, retention_s))


if __name__ == "__main__":
    main()
