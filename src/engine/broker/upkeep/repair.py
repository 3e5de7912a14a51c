"""Makes records for messages that no record explains, in a directory that no process has open (`inspect --repair`).

Log files tell a topic's segments, and of each its range, its creation time and whether it is sealed. The rest of lost
metadata cannot be restored; where an older record exists, it is continued.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from pyroaring import BitMap64

from engine._native.produce.hashing import xxh64
from engine.broker.upkeep.offline import read_log, read_metadata
from engine.broker.upkeep.unexplained import explains
from engine.control.base.topic_records import INDEX_TOPICS, index_key, topic_of_key
from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.metadata import keys
from engine.metadata.batch import Batch
from engine.metadata.image import Image
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.metadata.mark import read_version
from engine.metadata.store import Put, Record
from engine.metadata.table import Table
from engine.metadata.witness import MarkPolicy, log_of, mark_of
from engine.model.identity import Identity
from engine.model.layout import SegmentLayout
from engine.model.names import SEGMENT_SCHEME, SegmentName, TopicName
from engine.model.rebuild import FoundSegment, rebuild
from engine.storage.cursor import visibility
from engine.storage.file.format import Header, State
from engine.storage.file.recovery import name_crc
from engine.storage.file.removal import remaining

METADATA_FILE = "metadata.db"
SEGMENTS = "segments"
KEPT = "before-repair"  # the directory of the copies, with a number appended

LOST = (
    "subscriptions and what they have acknowledged, schemas, properties and policies, key hash and entry buckets, "
    "operators' settings, and what became of transactions"
)


@dataclass(slots=True)
class FoundStore:
    """One segment's directory. `damage`: why its files do not suffice, or their damage."""

    name: SegmentName
    end_offset: int = 0
    messages: int = 0
    transactional: int = 0  # messages that were sent in transactions
    facts: FoundSegment | None = None
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic whose record is rebuilt. `layout` is None where that is impossible; `problem` tells why."""

    topic: TopicName
    stores: tuple[FoundStore, ...]
    unexplained: tuple[SegmentName, ...]
    layout: SegmentLayout | None
    problem: str | None
    older: bool  # there is an older record


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a repair. `metadata`: the damage of the metadata file; None: it is intact."""

    data: Path
    topics: tuple[TopicPlan, ...]
    metadata: str | None
    set_aside: tuple[Path, ...]  # unusable files; the others are continued
    version: int  # the new records have larger ones
    identity: Identity | None  # the store's, by the newest files
    nameless: tuple[str, ...]  # directories whose names do not identify their topic
    visible: frozenset[SegmentName]  # stores whose transactions are recorded in the metadata

    @property
    def needed(self) -> bool:
        """Whether there is anything to repair."""
        return self.metadata is not None or bool(self.topics)


def make_plan(data: Path, scratch: Path, now_ms: int) -> Plan:
    """Read everything, change nothing. `scratch`: an empty directory, for a copy of the metadata.

    Raises NotFoundError, DataDirectoryBusyError, StorageError.
    """
    if not (data / METADATA_FILE).exists() and not (data / SEGMENTS).exists():
        raise NotFoundError(
            f"{data} has neither {METADATA_FILE} nor {SEGMENTS}; it must be the path of a data directory"
        )
    if (lock := data / f"{METADATA_FILE}.lock").exists():
        LockFile(lock).release()  # no engine has the directory
    records, version, state, set_aside = _records(data / METADATA_FILE, scratch)
    by_key = {record.key: record for record in records}
    found = _read_segments(data / SEGMENTS)
    topics = tuple(
        plan
        for topic, stores in found.stores.items()
        if (plan := _plan_topic(topic, stores, by_key.get(keys.topic(topic)), now_ms)) is not None
    )
    visible = frozenset(s.name for own in found.stores.values() for s in own if keys.visibility(s.name) in by_key)
    record = by_key.get(keys.STORE)
    own = None if record is None else Identity.from_json(record.value)
    identity = _newer(own, found.identity)
    if state is None and identity != own and identity is not None:
        state = f"older than the log files, or of another directory: they are of generation {identity.generation}"
    version = max(version, found.term) + 1
    nameless = tuple(_without_record(found.nameless, records))
    return Plan(data, topics, state, set_aside, version, identity, nameless, visible)


def apply(plan: Plan, now_ms: int, *, show_transactional: bool = False) -> Path | None:
    """Carry out the plan; returns the directory of the original files' copies. Raises what Image raises.

    `show_transactional`: messages of transactions whose outcome is lost become readable. Otherwise they are hidden,
    as those of aborted transactions.
    """
    path = plan.data / METADATA_FILE
    lock = LockFile(lock_file_of(path))
    try:
        kept = _keep([path, log_of(path), mark_of(path)])
        for each in plan.set_aside:
            each.unlink(missing_ok=True)
    finally:
        lock.release()
    image = Image(path, MarkPolicy.RENEW)
    table = Table(0, image.load())
    table.version = max(image.version, plan.version)
    batch = Batch(table, now_ms)
    if plan.identity is not None:
        batch.put(Put(keys.STORE, plan.identity.to_json()))
    for topic in plan.topics:
        if topic.layout is None:
            continue
        indexes = {INDEX_TOPICS: index_key(topic.topic)}
        batch.put(Put(keys.topic(topic.topic), topic.layout.to_json(), indexes=indexes))
        for store in topic.stores:
            if store.transactional and store.name not in plan.visible and not show_transactional:
                # From there on, recovery hides messages without an operation record.
                image_of = visibility.pack(0, BitMap64(), BitMap64())
                batch.put(Put(keys.visibility(store.name), image_of))
    try:
        if batch.changes:
            step = image.step(batch.changes)
            image.commit(step)
            image.committed(step)
    finally:
        image.close()
    return kept


def _records(path: Path, scratch: Path) -> tuple[list[Record], int, str | None, tuple[Path, ...]]:
    """(the records, the version, the file's damage, its unusable files)."""
    marked, log = read_version(mark_of(path)) or 0, log_of(path)
    if not path.exists():
        return [], marked, "it is missing", (mark_of(path), log)
    try:
        records, version = read_metadata(path, scratch)
    except CorruptionError as e:
        if not log.exists():
            return [], marked, str(e), (mark_of(path), path)
        damage = str(e)
    else:
        return records, max(version, marked), _state(path, version), ()
    try:  # without its log the file may be intact, some commits older
        records, version = read_metadata(path, scratch, with_log=False)
    except CorruptionError:
        return [], marked, damage, (mark_of(path), log, path)
    return records, max(version, marked), f"{damage}; the file is used without it", (log,)


def _state(path: Path, version: int) -> str | None:
    """Why a readable file is not the newest, by its mark; None: it is."""
    marked = read_version(mark_of(path))
    if marked is None:
        what = "damaged" if mark_of(path).exists() else "missing"
        return f"its mark is {what}: whether it is the newest is unknown; its content is used"
    if marked > version:
        return f"it is at version {version}, and was at {marked}: it is older, or lost commits; its content is used"
    return None


def _without_record(directories: Iterable[str], records: Iterable[Record]) -> Iterator[str]:
    """Directories of long topic names without a record. Such a name is cut, and "~" with its checksum appended."""
    topics = [topic_of_key(r.key) for r in records if r.key.startswith(keys.TOPICS)]
    known = {f"{xxh64(part.encode()):016x}" for t in topics for part in (t.tenant, t.namespace, t.local)}
    for directory in directories:
        checksums = {part.rpartition("~")[2] for part in directory.split("/")[:3] if "~" in part}
        if not checksums <= known:
            yield directory


@dataclass(slots=True)
class _Segments:
    """The content of `segments/`."""

    stores: dict[TopicName, list[FoundStore]] = field(default_factory=dict)  # those that have files
    nameless: list[str] = field(default_factory=list)
    term: int = 0  # the largest: terms are versions of records
    identity: Identity | None = None  # the newest that a file bears


def _read_segments(root: Path) -> _Segments:
    found = _Segments()
    for directory in sorted(p for p in root.glob("*/*/*/*") if p.is_dir()):
        parts = directory.relative_to(root).parts
        if "~" in "".join(parts[:3]):
            found.nameless.append("/".join(parts))
            continue
        try:
            tenant, namespace, local = map(unquote, parts[:3])
            name = SegmentName.parse(f"{SEGMENT_SCHEME}{tenant}/{namespace}/{local}/{parts[3]}")
        except InvalidArgumentError:
            continue  # not ours
        logs = remaining(p.name for p in directory.iterdir())
        if logs:
            store = FoundStore(name)
            found.stores.setdefault(name.topic, []).append(store)
            _read_store(store, [directory / log for log in logs], found)
    return found


def _read_store(store: FoundStore, paths: Sequence[Path], found: _Segments) -> None:
    """Read one file after the other: each may be large, and its entries are not kept."""
    name = store.name
    ends: dict[tuple[int, int], tuple[bool, int, Header]] = {}  # by place: whether it is sealed, where it ends
    for path in paths:
        try:
            report = read_log(path)
        except CorruptionError as e:
            store.damage.append(str(e))
            continue
        opening, closing = report.opening, report.closing
        if opening.name_crc != name_crc(name):
            store.damage.append(f"{path} belongs to another segment")
            continue
        store.damage += [report.damage] if report.damage else []
        store.messages += sum(entry.count for entry in report.entries)
        store.transactional += sum(entry.count for entry in report.entries if entry.txn is not None)
        found.term = max(found.term, opening.term, *(entry.term for entry in report.entries))
        found.identity = _newer(found.identity, report.header.identity)
        end = report.end_offset if closing is None else closing.end_offset
        sealed = closing is not None and closing.state is State.SEALED
        ends[opening.first_offset, opening.term] = sealed, end, report.header
    if not ends:
        return
    store.end_offset = max(end for _, end, _ in ends.values())
    sealed, _, last = ends[max(ends)]
    created_ms = ends[min(ends)][2].opening.created_ms
    durability = None if last.origin is None else last.origin.durability
    store.facts = FoundSegment(name.segment_id, name.hash_range, sealed, store.end_offset > 0, created_ms, durability)


def _newer(one: Identity | None, other: Identity | None) -> Identity | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda identity: identity.generation)


def _plan_topic(topic: TopicName, stores: Sequence[FoundStore], record: Record | None, now_ms: int) -> TopicPlan | None:
    """The rebuilt record; None where the present one explains all stores."""
    known = None if record is None else SegmentLayout.from_json(record.value)
    unexplained = tuple(s.name for s in stores if (s.end_offset > 0 or s.facts is None) and not explains(known, s.name))
    if not unexplained:
        return None
    layout, problem = None, None
    silent = [store for store in stores if store.facts is None]
    if silent:
        problem = "; ".join(text for store in silent for text in store.damage)
    else:
        try:
            layout = rebuild([s.facts for s in stores if s.facts is not None], known=known, now_ms=now_ms)
        except CorruptionError as e:
            problem = str(e)
    return TopicPlan(topic, tuple(stores), unexplained, layout, problem, known is not None)


def _keep(paths: Iterable[Path]) -> Path | None:
    """Copy the files into a directory beside them; None where there are none."""
    there = [path for path in paths if path.exists()]
    if not there:
        return None
    number = 1
    while (directory := there[0].with_name(f"{KEPT}-{number}")).exists():
        number += 1
    directory.mkdir(mode=0o700)
    for path in there:
        (directory / path.name).write_bytes(path.read_bytes())
    return directory
