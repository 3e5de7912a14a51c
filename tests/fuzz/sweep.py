"""Damages a copy of a data directory at one place and judges how the engine reads it.

    python -m tests.fuzz.sweep DIRECTORY PART OF

sweeps over a part of all places: every OF-th from the PART-th on. It prints what is wrong, and how far it is.

*Equal*: everything is read as from the undamaged directory. *Reported*: a typed error names the file or the segment.
Everything else is a loss without a word, and a failure.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

import engine
from tests.fuzz.directory_program import CONFIG, NAME

LARGE = 64 << 10
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where copies are made, if there is one
WHOLE_EVERY = 20  # at each of so many places, what is not concerned is read as well: see read()
HANG_S = 60.0  # only a failure waits for so long
WHOLE, SAID = "<whole>", "<backlogs>"  # beside the subscriptions: what a reader from the start gets, what is said
REPORTS = (engine.CorruptionError, engine.UnsupportedError, engine.DataDirectoryError)
Reading = dict[str, dict[str, list[Any]]]  # by topic and subscription


class Damage(NamedTuple):
    """What is done to one file, or to two."""

    kind: str
    paths: tuple[Path, ...]  # inside the data directory
    position: int
    harm: Callable[[Path], None]  # of the directory

    def __str__(self) -> str:
        return f"{self.kind} {' and '.join(map(str, self.paths))} at {self.position}"

    @property
    def topic(self) -> str | None:
        """The short name of the one topic that has a part in it; None: it is of all, or of two."""
        return self.paths[0].parts[-3] if len(self.paths) == 1 and self.paths[0].parts[0] == "segments" else None

    def is_named(self, text: str) -> bool:
        """Whether a report says where it is: what is beside the metadata belongs to it."""
        return any(
            path.name in text or (path.name.startswith("metadata") and "metadata." in text) for path in self.paths
        )


def flip(path: Path, position: int) -> Damage:
    """One bit, another one at each place."""

    def harm(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ (1 << (position * 5 + position // 8) % 8)]))

    return Damage("flip", (path,), position, harm)


def zero(path: Path, position: int, size: int) -> Damage:
    """A block of zeros."""

    def harm(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.seek(position)
            file.write(bytes(min(size, (root / path).stat().st_size - position)))

    return Damage(f"zero {size}", (path,), position, harm)


def cut(path: Path, size: int) -> Damage:
    """The end is missing."""

    def harm(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.truncate(size)

    return Damage("cut", (path,), size, harm)


def swap(path: Path, other: Path) -> Damage:
    """Each has the other's bytes."""

    def harm(root: Path) -> None:
        one, two = (root / path).read_bytes(), (root / other).read_bytes()
        (root / path).write_bytes(two)
        (root / other).write_bytes(one)

    return Damage("swap", (path, other), 0, harm)


def files_of(root: Path) -> list[Path]:
    """All of a data directory, inside it."""
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def everything(root: Path) -> Iterator[Damage]:
    """A flip in every byte, zeros from every sixteenth part of a sector on, an end at every length.

    Of the metadata's log, which is as large as all the rest, every 61st. The metadata come last.
    """
    for path in reversed(files_of(root)):
        size = (root / path).stat().st_size
        step = 61 if size > LARGE else 1
        yield from (flip(path, at) for at in range(0, size, step))
        yield from (zero(path, at, 512) for at in range(0, size, 32 * step))
        yield from (cut(path, at) for at in range(0, size, step))


def swaps(root: Path) -> Iterator[Damage]:
    """Each file with each other one."""
    yield from (swap(*pair) for pair in itertools.combinations(files_of(root), 2))


def some(root: Path, rng: random.Random, count: int) -> list[Damage]:
    """So many of all these, as many in a small file as in a large one."""
    files = [path for path in files_of(root) if (root / path).stat().st_size]
    found: list[Damage] = []
    for number in range(count):
        path = files[number % len(files)]
        size = (root / path).stat().st_size
        at = rng.randrange(size)
        kinds = [flip(path, at), flip(path, at), zero(path, at & ~31, 512), cut(path, at)]
        found.append(rng.choice([*kinds, swap(path, rng.choice([other for other in files if other != path]))]))
    return found


async def read(root: Path, sound: Reading | None = None, *, only: str | None = None, brief: bool = False) -> Reading:
    """All messages of all topics, or of `only` one, and what each subscription has left. Raises what the engine raises.

    `sound`: as much as that is waited for, whatever the backlogs say now. None: as much as they say. `brief`: of the
    subscriptions only the backlogs; what a consumer of theirs receives is of the messages that are read anyway.
    """
    found: Reading = {}
    async with engine.open_async(root, config=CONFIG) as e:
        for topic in await e.admin.list_topics():
            if only is not None and not topic.endswith(f"/{only}"):
                continue
            subscriptions = (await e.admin.get_stats(topic))["subscriptions"]
            left = backlogs = {name: facts["backlog"] for name, facts in subscriptions.items()}
            if sound is not None:
                left = {name: len(sound[topic][name]) for name in left if name in sound[topic]}
            async with await e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as reader:
                found[topic] = {WHOLE: await _received(reader, left["untouched"]), SAID: sorted(backlogs.items())}
            for name, count in [] if brief else left.items():
                make = e.queue_consumer if name == "queue" else e.stream_consumer
                async with await make(topic, name, name=NAME) as consumer:
                    found[topic][name] = await _received(consumer, count)
    return found


async def _received(consumer: Any, wanted: int) -> list[Any]:
    """So many messages, acknowledged where that makes others come."""
    messages: list[Any] = []
    while len(messages) < wanted:
        batch = await consumer.receive_batch(max_messages=wanted - len(messages), timeout=HANG_S)
        if not len(batch):
            raise TimeoutError(f"{len(messages)} of {wanted} came to {consumer}")
        messages += [(m.id.segment_id, m.id.offset, m.value, m.key) for m in batch]
        if hasattr(consumer, "acknowledge_cumulative"):
            await consumer.acknowledge_cumulative(batch)
    return sorted(messages)


async def judge(root: Path, damage: Damage, scratch: Path, sound: Reading, *, whole: bool = True) -> str | None:
    """None when it is equal or reported; else what is wrong. `whole`: read all; else the damaged topic, briefly."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(root, scratch)
    damage.harm(scratch)
    try:
        found = await read(scratch, sound, only=None if whole else damage.topic, brief=not whole)
    except REPORTS as e:
        return None if damage.is_named(str(e)) else f"{damage}: an error that names no file of these: {e}"
    except Exception as e:
        return f"{damage}: {type(e).__name__}: {e}"
    if not whole:
        concerned = [topic for topic in sound if damage.topic is None or topic.endswith(f"/{damage.topic}")]
        sound = {topic: {name: sound[topic][name] for name in (WHOLE, SAID)} for topic in concerned}
    return None if found == sound else f"{damage}: something else is read, and nothing said"


async def sweep(root: Path, places: Iterable[Damage], wrong: list[str]) -> AsyncIterator[int]:
    """Judge each place on a copy in memory; how many there were so far, after each."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        copy = Path(scratch, "data")
        shutil.copytree(root, copy)
        sound = await read(copy)
        for number, damage in enumerate(places, 1):
            if text := await judge(root, damage, copy, sound, whole=number % WHOLE_EVERY == 1):
                wrong.append(text)
            yield number


async def main(root: Path, part: int, of: int) -> int:
    """Sweep over one part; how many were wrong."""
    logging.getLogger("engine").setLevel(logging.CRITICAL)
    wrong: list[str] = []
    told = number = 0
    places = itertools.islice(itertools.chain(everything(root), swaps(root)), part, None, of)
    async for number in sweep(root, places, wrong):
        if len(wrong) > told or number % 1000 == 0:
            print(number, *wrong[told:], sep="\n", flush=True)
            told = len(wrong)
    print(f"{root}: {number} places of part {part} of {of}, {len(wrong)} wrong", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))) > 0)
