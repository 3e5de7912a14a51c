"""`ChangedFiles`: notices that some files have been replaced, once the replacement is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Facts = tuple[tuple[str, tuple[int, int, int] | None], ...]


class ChangedFiles:
    """`paths`: of the files, asked at each look.

    Files that belong together, as a certificate and its key, do not fit while they are being replaced: a change counts
    at the first look that finds the files as the look before has.
    """

    def __init__(self, paths: Callable[[], Iterable[str]]) -> None:
        self._paths = paths
        self._used = self._seen = self._look()

    def look(self) -> bool:
        """Whether the files are others than those of the last change, and stand still."""
        before, self._seen = self._seen, self._look()
        if self._seen == self._used or self._seen != before:
            return False
        self._used = self._seen
        return True

    def _look(self) -> Facts:
        return facts_of(self._paths())


def facts_of(paths: Iterable[str]) -> Facts:
    """What differs once a file is another one, by its path; None: there is none."""
    return tuple((path, _facts(path)) for path in paths)


def _facts(path: str) -> tuple[int, int, int] | None:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
