"""Verification: every byte of backups is read and checked, and each damage is named with its place."""

from __future__ import annotations

from collections.abc import Callable

from engine.backups.destination import Destination
from engine.backups.generations import existing, load
from engine.backups.manifest import Entry, Manifest
from engine.backups.packs import read_part
from engine.backups.results import Progress, VerifiedBackup
from engine.errors import CorruptionError

_NAMED_MAX = 20


def verify(destination: Destination, generation: str | None, progress: Progress) -> VerifiedBackup:
    """All generations, or one. Raises CorruptionError, which names each damage, after everything was read."""
    names = existing(destination) if generation is None else [generation]
    damage: list[str] = []
    seen: set[tuple[str, int, int]] = set()
    files = size = 0
    manifests = []
    for name in names:
        try:
            manifests.append(load(destination, name))
        except CorruptionError as e:
            damage.append(str(e))
    total = sum(manifest.size for manifest in manifests)
    for manifest in manifests:
        for entry in manifest.files:
            damage += _check(destination, manifest, entry, seen)
            files += 1
            size += entry.size
            progress("verify", size, total)
    _raise(damage)
    return VerifiedBackup(len(names), files, sum(each[2] for each in seen))


def verify_generation(
    destination: Destination, manifest: Manifest, progress: Progress, step: Callable[[], None]
) -> None:
    """One generation, under the lock that `step` renews. Raises CorruptionError."""
    damage: list[str] = []
    seen: set[tuple[str, int, int]] = set()
    size = 0
    for entry in manifest.files:
        damage += _check(destination, manifest, entry, seen)
        size += entry.size
        progress("verify", size, manifest.size)
        step()
    _raise(damage)


def _check(destination: Destination, manifest: Manifest, entry: Entry, seen: set[tuple[str, int, int]]) -> list[str]:
    """The damage of a file. What several generations share is read once: `seen` has the parts that were good."""
    damage, position = [], 0
    for part in entry.parts:
        place = (manifest.packs[part.pack][0], part.at, part.size)
        if place not in seen:
            try:
                read_part(destination, manifest, entry, part, position)
                seen.add(place)
            except CorruptionError as e:
                damage.append(f"{manifest.generation}: {e}")
        position += part.size
    return damage


def _raise(damage: list[str]) -> None:
    if damage:
        more = f"; and {len(damage) - _NAMED_MAX} more" if len(damage) > _NAMED_MAX else ""
        raise CorruptionError("; ".join(damage[:_NAMED_MAX]) + more)
