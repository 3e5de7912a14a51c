"""`PlainHost`: segments that are always available and drained; for simulations of the layers above them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engine.control.base.ports import HostedSegmentStatistics, SegmentEnd, SegmentSpec
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition


class PlainHost:
    """A `SegmentHost` without messages. Remembers which segments exist, and which of them are sealed."""

    def __init__(self) -> None:
        self.segments: dict[SegmentName, bool] = {}  # whether it is sealed

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        self.segments.setdefault(spec.name, False)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """Seal it, at offset 0."""
        self.segments[spec.name] = True
        return SegmentEnd(0, b"")

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        """Nothing: there are no producers."""

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        self.segments.pop(spec.name, None)

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        return sorted((name for name in self.segments if name.topic == topic), key=lambda name: name.segment_id)

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        return []

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        pass

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        pass

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        pass

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        pass

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        """The end is offset 0."""
        return 0

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        return 0

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """Report it drained in the next turn of the loop."""
        return asyncio.get_running_loop().call_soon(drained).cancel

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        return HostedSegmentStatistics(sealed=spec.sealed)

    async def segment_urls(self, names: Sequence[SegmentName]) -> list[str]:
        return ["engine://plain:6650"] * len(names)
