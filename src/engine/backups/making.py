"""`make`: one backup: a new generation at a destination."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version

from engine.backups.destination import Destination
from engine.backups.files import Base, Copied, SegmentCopier
from engine.backups.generations import newest, prune, stored_packs
from engine.backups.manifest import FORMAT, Manifest, manifest_name, pack
from engine.backups.packs import PackWriter
from engine.backups.results import BackedUp, Progress, backed_up
from engine.backups.source import Call, Kept
from engine.backups.verifying import verify_generation
from engine.clock import SystemClock
from engine.errors import EngineError, InvalidArgumentError
from engine.model.backups import METADATA_FILE, Plan


def make(
    call: Call,
    destination: Destination,
    *,
    keep: int | None,
    verify: bool,
    rng: random.Random,
    progress: Progress,
) -> BackedUp:
    """Back up what the broker behind `call` has. `keep`: of the generations; None: all. See backup()."""
    lock = destination.lock()
    try:
        base = newest(destination)
        there = stored_packs(destination)
        kept = Kept(call, lock)
        try:
            if kept.data is not None and destination.is_within(kept.data):
                raise InvalidArgumentError(f"the destination must lie outside of the data directory {kept.data}")
            manifest = _copy(kept, destination, base, there, rng, progress)
        except BaseException:
            with suppress(EngineError):
                kept.end(done=False)
            raise
        kept.end(done=True)
        deleted = prune(destination, keep) if keep is not None else []
        if verify:
            verify_generation(destination, manifest, progress, lock.renew)
        return backed_up(manifest, deleted, verified=verify)
    finally:
        lock.release()


def _copy(
    kept: Kept,
    destination: Destination,
    base: Manifest | None,
    there: Mapping[str, int],
    rng: random.Random,
    progress: Progress,
) -> Manifest:
    plan, generation = kept.plan, _name(kept.plan, rng)
    with PackWriter(destination, generation) as writer:
        copied = Copied()
        copier = SegmentCopier(kept.source, writer, Base(base, there, writer), copied, kept.renew)
        copier.copy_plain(METADATA_FILE, METADATA_FILE)
        for number, segment in enumerate(plan.segments, 1):
            copier.copy(segment)
            kept.renew()
            progress("copy", number, len(plan.segments))
        writer.finish()
        manifest = Manifest(
            format=FORMAT,
            generation=generation,
            engine=version("engine"),
            taken_ms=plan.taken_ms,
            finished_ms=SystemClock().time_ms(),
            store=plan.store,
            starts=plan.generation,
            version=plan.version,
            topics=plan.topics,
            segments=len(plan.segments),
            messages=copied.messages,
            size=sum(entry.size for entry in copied.files),
            added=writer.added,
            damaged=copied.damaged,
            packs=writer.packs,
            files=copied.files,
        )
    destination.put(manifest_name(generation), [pack(manifest)])  # from here on it is there
    return manifest


def _name(plan: Plan, rng: random.Random) -> str:
    taken = datetime.fromtimestamp(plan.taken_ms / 1000, UTC)
    return f"{taken:%Y%m%dT%H%M%S}{plan.taken_ms % 1000:03d}Z-{rng.getrandbits(16):04x}"
