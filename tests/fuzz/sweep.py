"""Damages a copy of a data directory at one place and judges how the engine reads it.

    python -m tests.fuzz.sweep DIRECTORY PART OF

sweeps over a part of all places: every OF-th from the PART-th on. It prints what is wrong, and how far it is.

*Equal*: everything is read as from the undamaged directory. *Reported*: a typed error names the file or the segment.
Everything else is a loss without a word, and a failure.

An engine takes 20 ms to start, read and end, and there are a quarter of a million places. So at most of them only the
part is asked that reads the damaged file: the segment's recovery, with what the sound metadata remember of it, or the
metadata store. Where it reports the file, or finds all that it finds in the sound one, so does the engine; any other
answer, and every twentieth place, is judged by an engine.
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
from engine.broker.hosting.remembered import Remembered
from engine.clock import SystemClock
from engine.metadata.sqlite import SqliteMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.storage.cursor.store import CursorStore
from engine.storage.file.continuation import Known
from tests.fuzz.directory_program import CONFIG, NAME
from tests.kit.stores import make_store, read_blocks

LARGE = 64 << 10
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where copies are made, if there is one
WHOLE_EVERY = 20
METADATA, SEGMENTS = "metadata.db", "segments"
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

    Of a file above 64 KiB every 61st. The metadata come last.
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


async def read(root: Path, sound: Reading | None = None) -> Reading:
    """All messages of all topics, and what every subscription has left. Raises what the engine raises.

    `sound`: as much as that is waited for, whatever the backlogs say now. None: as much as they say.
    """
    found: Reading = {}
    async with engine.open_async(root, config=CONFIG, shared=False) as e:
        for topic in await e.admin.list_topics():
            subscriptions = (await e.admin.get_stats(topic))["subscriptions"]
            left = backlogs = {name: facts["backlog"] for name, facts in subscriptions.items()}
            if sound is not None:
                left = {name: len(sound[topic][name]) for name in left if name in sound[topic]}
            async with await e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as reader:
                found[topic] = {WHOLE: await _received(reader, left["untouched"]), SAID: sorted(backlogs.items())}
            for name, count in left.items():
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


async def judge(root: Path, damage: Damage, scratch: Path, sound: Reading) -> str | None:
    """None when it is equal or reported; else what is wrong."""
    copy(root, scratch)
    damage.harm(scratch)
    try:
        found = await read(scratch, sound)
    except REPORTS as e:
        return None if damage.is_named(str(e)) else f"{damage}: an error that names no file of these: {e}"
    except Exception as e:
        return f"{damage}: {type(e).__name__}: {e}"
    return None if found == sound else f"{damage}: something else is read, and nothing said"


class Parts:
    """What the parts that read a directory's files find in them, each by itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._metadata: object = None
        self._logs: dict[Path, object] = {}  # by the segment's directory
        self._bucket_ends: dict[Path, list[int]] = {}
        self._known: dict[Path, Known] = {}
        self._durability: dict[Path, str] = {}

    async def learn(self, scratch: Path) -> None:
        """Read the sound files, each part from a copy of its own."""
        folders = sorted({path.parent for path in files_of(self.root) if path.parts[0] == SEGMENTS})
        copy(self.root, scratch)
        async with engine.open_async(scratch, config=CONFIG, shared=False) as e:
            for folder in folders:
                name = segment_in(folder)
                facts = (await e.admin.get_metadata(str(name.topic)))["segments"][str(name.segment_id)]
                self._bucket_ends[folder] = facts["bucketBoundaries"]
                self._durability[folder] = "interval" if folder.parts[-2] == "loose" else "fsync"
        copy(self.root, scratch)
        store = await SqliteMetadataStore.open(scratch / METADATA, clock=SystemClock())
        remembered = Remembered(store, CursorStore(store))
        for folder in folders:
            self._known[folder] = await remembered.reach(segment_in(folder))
        await store.close()
        copy(self.root, scratch)
        self._metadata = await self._read_metadata(scratch)
        for folder in folders:
            self._logs[folder] = await self._read_log(scratch, folder)

    async def accepts(self, damage: Damage, scratch: Path) -> bool:
        """Whether the one part that reads the damaged file reports it, or finds nothing else than in the sound one."""
        folder = damage.paths[0].parent
        if len(damage.paths) > 1 or (folder != Path() and folder not in self._logs):
            return False
        shutil.rmtree(scratch, ignore_errors=True)
        if folder == Path():
            shutil.copytree(self.root, scratch, ignore=shutil.ignore_patterns(SEGMENTS))
        else:
            shutil.copytree(self.root / folder, scratch / folder)
        damage.harm(scratch)
        try:
            if folder == Path():
                return await self._read_metadata(scratch) == self._metadata
            return await self._read_log(scratch, folder) == self._logs[folder]
        except REPORTS as e:
            return damage.is_named(str(e))

    async def _read_metadata(self, scratch: Path) -> object:
        store = await SqliteMetadataStore.open(scratch / METADATA, clock=SystemClock())
        try:
            return [(r.key, r.value, r.stat) for r in await store.list("", "\U0010ffff")], store.version
        finally:
            await store.close()

    async def _read_log(self, scratch: Path, folder: Path) -> object:
        store = make_store(scratch)
        segment = await store.open(
            segment_in(folder),
            durability=self._durability[folder],
            bucket_ends=self._bucket_ends[folder],
            known=self._known[folder],
        )
        try:
            blocks = b"".join(bytes(block.data) for block in await read_blocks(segment, segment.first_offset))
            place = (segment.first_offset, segment.messages_end, segment.next_offset, segment.sealed, segment.identity)
            return place, blocks, segment.dedup_snapshot()
        finally:
            await store.abandon(segment_in(folder))


def copy(root: Path, scratch: Path) -> None:
    """A new copy in the place of what is there."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(root, scratch)


def segment_in(folder: Path) -> SegmentName:
    """Whose files are in a directory, such as segments/public/default/t/0000-7fff-1."""
    *_, tenant, namespace, topic, descriptor = folder.parts
    start, end, ident = descriptor.split("-")
    return TopicName.parse(f"{tenant}/{namespace}/{topic}").segment(HashRange(int(start, 16), int(end, 16)), int(ident))


async def sweep(root: Path, places: Iterable[Damage], wrong: list[str], *, parts: bool = False) -> AsyncIterator[int]:
    """Judge each place on a copy in memory; how many there were so far, after each. `parts`: ask these first."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        here, asked = Path(scratch, "data"), Parts(root)
        copy(root, here)
        sound = await read(here)
        if parts:
            await asked.learn(here)
        for number, damage in enumerate(places, 1):
            accepted = parts and number % WHOLE_EVERY != 1 and await asked.accepts(damage, here)
            if not accepted and (text := await judge(root, damage, here, sound)) is not None:
                wrong.append(text)
            yield number


async def main(root: Path, part: int, of: int) -> int:
    """Sweep over one part; how many were wrong."""
    logging.getLogger("engine").setLevel(logging.CRITICAL)
    wrong: list[str] = []
    told = number = 0
    places = itertools.islice(itertools.chain(everything(root), swaps(root)), part, None, of)
    async for number in sweep(root, places, wrong, parts=True):
        if len(wrong) > told or number % 1000 == 0:
            print(number, *wrong[told:], sep="\n", flush=True)
            told = len(wrong)
    print(f"{root}: {number} places of part {part} of {of}, {len(wrong)} wrong", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))) > 0)
