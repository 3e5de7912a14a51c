"""`Header` and `Request`: what the headers of all commands have in common, and the types of their fields.

A header is a msgpack map. A struct names its fields as they stand on the wire; one with a default may be absent, and is
left out where it has that value. Fields that a struct does not name are ignored: a newer peer says more.

What a client says is checked for its types here, and for its values by what it is for: a value that cannot be is then
that request's error, and the connection lives on. What a broker says is checked here for its values too.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from engine.limits import HASH_RING_SIZE
from engine.wire.commands.command import Command

SoundIf = tuple[tuple[str, ...], tuple[str, ...]]

# Everything that counts or is an offset fits a signed 64-bit number of native code.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CountOrNone = Annotated[int, Meta(ge=-1, le=2**63 - 1)]  # -1: none
Salt = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hash = Annotated[int, Meta(ge=0, le=HASH_RING_SIZE - 1)]
ErrorCode = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Range = Annotated[list[Count], Meta(min_length=2, max_length=2)]  # inclusive

# Of a client: inclusive [first, last], or the same packed: 16 bytes each, two little-endian u64.
Ranges = list[Any] | bytes
Map = dict[Any, Any]

NO_REQUEST = -1  # a request that was not given its id yet

Answer = TypeVar("Answer")


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A map inside of a header. Named as on the wire."""

    # (fields, others), where it has no fault while `fields` are lists of one length and `others` are None: most are
    # known to be sound without a call. None: fault() is always asked.
    sound_if: ClassVar[SoundIf | None] = None

    def fault(self) -> str | None:
        """What is wrong with fields that are valid one by one."""
        return None


class Header(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The header of one command. Neither side changes it, or what is in it, once it was sent."""

    command: ClassVar[Command]


class Answerable(Header, Generic[Answer], frozen=True, kw_only=True):
    """One that may be answered: by the first frame back with the same `request_id`.

    That is ERROR, or a header of the type `answer`; of a Part, the `result` of SUCCESS is one. None: SUCCESS that says
    no more.
    """

    answer: ClassVar[type[Part] | None] = None


class Request(Answerable[Answer], frozen=True, kw_only=True):
    """One that always is. The connection that it goes over chooses its id."""

    request_id: int = NO_REQUEST  # it is always said

    def fault(self) -> str | None:
        return "request_id must be given, got nothing" if self.request_id == NO_REQUEST else None


class Closing(Answerable[None], frozen=True, kw_only=True):
    """What is attached under an id has ended. From a client: a request, -> SUCCESS. From a broker: `code`, why."""

    request_id: Count | None = None
    code: ErrorCode | None = None
    message: str | None = None


def disorder(name: str, ranges: list[Any] | None) -> str | None:
    """What is wrong with ranges of which one ends before it begins."""
    for r in ranges or ():
        if r[0] > r[1]:
            return f"{name} must have ranges [first, last] with first <= last, got {list(r)}"
    return None
