"""A plain model of the metadata store's table: what a commit changes, what goes to the file, and what is visible."""

from __future__ import annotations

import json
from dataclasses import dataclass
from zlib import crc32

Indexes = dict[str, str | tuple[str, ...]]
Fields = tuple[str, bytes, int, int, int, int | None, str | None, int]


@dataclass(frozen=True)
class ModelRow:
    """A record and its keys in indexes."""

    key: str
    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    indexes: tuple[tuple[str, str | tuple[str, ...]], ...]

    def fields(self) -> Fields:
        """As it is in the file."""
        indexes = json.dumps(dict(self.indexes), sort_keys=True, separators=(",", ":")) if self.indexes else None
        facts = f"{self.key}\n{self.version}\n{self.created_ms}\n{self.modified_ms}\nNone\n{indexes}\n"
        checksum = crc32(self.value, crc32(facts.encode()))
        return self.key, self.value, self.version, self.created_ms, self.modified_ms, None, indexes, checksum


class ModelTable:
    """The rows by key; each write takes the next version."""

    def __init__(self) -> None:
        self.rows: dict[str, ModelRow] = {}
        self.version = 0

    def put(self, key: str, value: bytes, now_ms: int, indexes: Indexes) -> None:
        self.version += 1
        created_ms = self.rows[key].created_ms if key in self.rows else now_ms
        self.rows[key] = ModelRow(key, value, self.version, created_ms, now_ms, tuple(indexes.items()))

    def put_sequence(self, prefix: str, value: bytes, now_ms: int, indexes: Indexes) -> str:
        while (key := f"{prefix}/{self.version + 1:020d}") in self.rows:
            self.version += 1
        self.put(key, value, now_ms, indexes)
        return key

    def delete(self, key: str) -> bool:
        if key not in self.rows:
            return False
        self.version += 1
        del self.rows[key]
        return True

    def index(self, name: str) -> list[tuple[str, str]]:
        """(index key, key) in order."""
        found = []
        for row in self.rows.values():
            keys = dict(row.indexes).get(name, ())
            found += [(one, row.key) for one in ((keys,) if isinstance(keys, str) else keys)]
        return sorted(found)
