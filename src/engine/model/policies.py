"""`NamespacePolicies`: a namespace's policies for its topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidArgumentError
from engine.limits import RETENTION_S_DEFAULT
from engine.model.fields import Fields, dump
from engine.model.layout import DURABILITIES

_JSON = {
    "retention_time_s": "retentionTimeSeconds",
    "retention_size_bytes": "retentionSizeBytes",
    "durability": "durability",
}

FOR_EVER = -1
AUTO_SCALE = "scalableTopicAutoScalePolicy"  # a field of the namespace record beside those of NamespacePolicies
FIELDS = frozenset(_JSON.values())  # fields of NamespacePolicies in the record
_MOST = {"retention_time_s": 10**11, "retention_size_bytes": 2**62}  # far below 2**63, also in milliseconds


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """Raises InvalidArgumentError naming the field. None: no limit by size; the broker's default durability."""

    retention_time_s: int = RETENTION_S_DEFAULT  # how long acknowledged messages are kept; FOR_EVER: no limit
    retention_size_bytes: int | None = None  # of acknowledged messages, per segment; FOR_EVER: no limit
    durability: str | None = None  # of topics created without an own one

    def __post_init__(self) -> None:
        for name in ("retention_time_s", "retention_size_bytes"):
            value = getattr(self, name)
            optional = name == "retention_size_bytes" and value is None
            if not optional and (type(value) is not int or value < FOR_EVER):
                raise InvalidArgumentError(f"{name} must be an integer >= 0, or -1 for no limit, got {value!r}")
        if self.durability is not None and self.durability not in DURABILITIES:
            raise InvalidArgumentError(f"durability must be {' or '.join(DURABILITIES)}, got {self.durability!r}")

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> NamespacePolicies:
        """From a mapping of these field names. Raises InvalidArgumentError, also for an unknown one."""
        if unknown := sorted(fields.keys() - _JSON.keys()):
            raise InvalidArgumentError(f"a namespace policy must be of {', '.join(_JSON)}, got {unknown[0]!r}: unknown")
        for name, most in _MOST.items():  # only new policies are checked: stored ones are always readable
            if type(value := fields.get(name)) is int and value > most:
                raise InvalidArgumentError(f"{name} must be at most {most}, or -1 for no limit, got {value!s:.40}")
        return cls(**fields)

    def to_mapping(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _JSON}

    def to_fields(self) -> dict[str, Any]:
        """With the names of the namespace record."""
        return {_JSON[name]: value for name, value in self.to_mapping().items()}

    def to_json(self) -> bytes:
        """The value of a namespace record without other fields."""
        return dump(self.to_fields())

    @classmethod
    def from_json(cls, value: bytes) -> NamespacePolicies:
        """Undo to_json(). Raises CorruptionError naming the field."""
        fields = Fields.parse("namespace record", value)
        present = {name: fields.values[key] for name, key in _JSON.items() if key in fields.values}
        for name, number in present.items():
            if isinstance(number, int) and number < FOR_EVER:  # in old records any negative number meant no limit
                present[name] = FOR_EVER
        try:
            return cls(**present)
        except InvalidArgumentError as e:
            fields.wrong(str(e).split()[0], str(e))
