"""`WatchedFile`: a file of tokens or keys, which is read again when it has changed."""

from __future__ import annotations

from pathlib import Path

from engine.errors import InvalidConfigurationError


class WatchedFile:
    """The file that a setting names. `name`: setting and path, for texts."""

    def __init__(self, setting: str, path: str) -> None:
        """Raises InvalidConfigurationError."""
        self.path = Path(path)
        self.name = f"{setting} {path}"
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether it is another one than at the last look. Raises InvalidConfigurationError."""
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> tuple[int, int, int]:
        try:
            facts = self.path.stat()
        except OSError as e:
            raise InvalidConfigurationError(f"{self.name} cannot be read: {e.strerror or e}") from e
        return facts.st_ino, facts.st_mtime_ns, facts.st_size
