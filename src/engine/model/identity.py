"""`Identity`: a metadata store, and one of the broker starts on it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.fields import Fields, dump

_BITS = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """`store`: a random number below 2**64, never 0, drawn at the first use of the metadata store. `generation`: 1 for
    the first start of a broker on it, and one more for every later start of any broker.

    Files that a broker writes carry its identity: files of a larger generation, or of another store, show that the
    metadata are older than the files, or belong to others.
    """

    store: int
    generation: int

    def to_json(self) -> bytes:
        return dump({"store": f"{self.store:016x}", "generation": self.generation})

    @classmethod
    def from_json(cls, value: bytes) -> Identity:
        """Undo to_json(). Raises CorruptionError naming the field."""
        fields = Fields.parse("store record", value)
        text = fields.text("store")
        try:
            store = int(text, 16)
        except ValueError:
            store = 0
        if not 0 < store < 1 << _BITS:
            fields.wrong("store", f"must be 16 hexadecimal digits, not all 0, got {text!r}")
        generation = fields.number("generation")
        if generation < 1:
            fields.wrong("generation", f"must be at least 1, got {generation}")
        return cls(store, generation)
