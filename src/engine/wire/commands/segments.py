"""What a segment's owner is asked without attaching; and what brokers ask of each other."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from engine.wire.commands.command import Command
from engine.wire.commands.header import Count, Hash, Part, Range, Request, Salt, disorder


class Place(Part, frozen=True, kw_only=True):
    """A place in a segment.

    `offset` is of what readers may see, `end` of what is durable: an open transaction lies between the two.
    `acknowledged`: the offset below which the subscription has acknowledged everything. `open_buckets`: those in which
    something below the position that was given is not. `backlog`: how many messages it has not acknowledged.
    """

    offset: Count
    first: Count
    end: Count
    sealed: bool = False
    acknowledged: Count | UnsetType = UNSET
    open_buckets: list[Hash] | UnsetType = UNSET
    backlog: Count | UnsetType = UNSET


class SegmentOffset(Request[Place], frozen=True, kw_only=True):
    """`at`: "earliest" | "latest" | milliseconds. `buckets`: [[bucket, position], ...] of the `subscription`."""

    command = Command.SEGMENT_OFFSET
    answer = Place
    topic: str
    at: str | int
    subscription: str | None = None
    buckets: list[Any] | None = None


class Files(Part, frozen=True, kw_only=True):
    """Where messages are: each of `files` is (path, the block that it begins with, its salt, the position to begin at,
    that to end before, the offset after that). None: the client is to attach. What is in them, it checks further.

    `objects`: each is (key in the store of objects, first offset, offset after the last, size), one behind the other.
    `upto`: below it everything is there. `hidden`: inclusive ranges of those that are not for readers.
    """

    files: list[tuple[str, bytes, Salt, Count, Count, Count]] | None = None
    objects: list[tuple[str, Count, Count, Count]] | UnsetType = UNSET
    upto: Count = 0
    hidden: list[Range] | None = None

    def fault(self) -> str | None:
        return disorder("hidden", self.hidden)


class SegmentFiles(Request[Files], frozen=True, kw_only=True):
    """Where a client finds the messages of [start, stop): one on the broker's machine in files, only where CONNECTED
    has the feature "short-circuit-reads"; with `objects` in the store of objects, only where it has "object-reads".
    """

    command = Command.SEGMENT_FILES
    answer = Files
    topic: str
    start: int
    stop: int
    objects: bool = False


class BrokerCall(Request[None], frozen=True, kw_only=True):
    """`target`: "segment" (the owner of a segment), "admin" or "service" (the leader of a topic).

    Payload, both ways: one msgpack value, the map of arguments and the result, which may be larger than a header. What
    the methods and their arguments are is in
    broker/cluster/segment_calls.py.
    """

    command = Command.BROKER_CALL
    target: str
    method: str
