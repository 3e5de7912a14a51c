"""What backups answer: frozen records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.backups.manifest import Manifest

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class BackupGeneration:
    """One backup at a destination. `taken`: the moment that it shows. `size`: of what it restores; `added`: what it
    wrote itself; bytes. `damaged`: files of the source that failed their checks, each with its place.
    """

    name: str
    taken: datetime
    engine: str
    topics: int
    segments: int
    messages: int
    size: int
    added: int
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup has done. `deleted`: generations that were not to be kept. `verified`: it was read back."""

    generation: BackupGeneration
    deleted: tuple[str, ...]
    verified: bool


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """What was read and checked: `generations` of them, `size` bytes of packs."""

    generations: int
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restoration has written. `kept`: files that an earlier run, which was cut short, had restored."""

    generation: BackupGeneration
    files: int
    kept: int


def generation_of(manifest: Manifest) -> BackupGeneration:
    """As users see it."""
    return BackupGeneration(
        manifest.generation,
        datetime.fromtimestamp(manifest.taken_ms / 1000, UTC),
        manifest.engine,
        manifest.topics,
        manifest.segments,
        manifest.messages,
        manifest.size,
        manifest.added,
        tuple(manifest.damaged),
    )


def backed_up(manifest: Manifest, deleted: Sequence[str], *, verified: bool) -> BackedUp:
    """The answer of a backup."""
    return BackedUp(generation_of(manifest), tuple(deleted), verified)
