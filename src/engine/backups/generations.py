"""The generations of a destination: which there are, and how old ones go.

A manifest goes first, then the packs to which no manifest refers any more. So a deletion that was cut short leaves
packs that nobody needs, which the next one removes, and never a manifest without its packs. Under the destination's
lock.
"""

from __future__ import annotations

import logging

from engine.backups.destination import Destination
from engine.backups.manifest import GENERATIONS, PACKS, SUFFIX, Manifest, manifest_name, unpack
from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError

_NAMED_MAX = 5

log = logging.getLogger("engine.backups")


def existing(destination: Destination) -> list[str]:
    """Names, the oldest first."""
    names = (stored.name for stored in destination.list(GENERATIONS))
    return sorted(name.removeprefix(f"{GENERATIONS}/").removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))


def load(destination: Destination, generation: str) -> Manifest:
    """Raises NotFoundError (there is none), CorruptionError, UnsupportedError."""
    name = manifest_name(generation)
    try:
        image = destination.get(name)
    except NotFoundError:
        known = ", ".join(existing(destination)[-_NAMED_MAX:]) or "none"
        raise NotFoundError(f"the generation must be one of those there ({known}), got {generation!r:.80}") from None
    return unpack(image, name)


def newest(destination: Destination) -> Manifest | None:
    """The newest that can be read; None: there is none."""
    for generation in reversed(existing(destination)):
        try:
            return load(destination, generation)
        except CorruptionError as e:
            log.warning("%s; the backup does not build on it", e)
    return None


def stored_packs(destination: Destination) -> dict[str, int]:
    """Name and size of each."""
    return {stored.name: stored.size for stored in destination.list(PACKS)}


def prune(destination: Destination, keep: int) -> list[str]:
    """Delete all but the newest `keep` generations, and what only these needed; their names.

    Nothing is deleted while a manifest that stays cannot be read: what it needs is not known. CorruptionError.
    """
    if keep < 1:
        raise InvalidArgumentError(f"keep must be at least 1, got {keep}")
    generations = existing(destination)
    return delete(destination, generations[:-keep])


def delete(destination: Destination, doomed: list[str]) -> list[str]:
    """Delete these generations, and what only they needed. Raises CorruptionError, and has deleted nothing then."""
    stays = [generation for generation in existing(destination) if generation not in doomed]
    needed = {pack for generation in stays for pack, _ in load(destination, generation).packs}
    if doomed:
        destination.delete([manifest_name(generation) for generation in doomed])
    if unneeded := [name for name in stored_packs(destination) if name not in needed]:
        destination.delete(unneeded)
    return doomed
