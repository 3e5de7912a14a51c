"""What a client makes for who plans reads ahead: views of topics, and readers of ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from engine.client.base.options import ConsumerOptions
from engine.client.net.pool import Pool
from engine.client.ranges.range_reader import AsyncRangeReader, Ranges, ReadPlan, check_keys, check_ranges
from engine.client.ranges.topic_view import AsyncTopicView
from engine.limits import RECEIVE_QUEUE_MESSAGES
from engine.model.names import TopicName


class Planning(ABC):
    """A part of AsyncClient."""

    _pool: Pool

    @abstractmethod
    def _make_name(self, kind: str) -> str:
        """One that nobody else has."""

    @abstractmethod
    async def _started(self, made: Any, start: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        """Start it, and remember it until it is closed."""

    async def topic_view(self, topic: str) -> AsyncTopicView:
        """Follows a topic's segments, and tells how far each of them reaches. The topic is not created.

        Raises NotFoundError, ConnectError, TimeoutError, InvalidArgumentError.
        """
        view = AsyncTopicView(self._pool, TopicName.parse(topic), self._make_name("view"))
        made: AsyncTopicView = await self._started(view, view.start)
        return made

    async def range_reader(
        self,
        topic: str,
        ranges: Ranges,
        *,
        buckets: tuple[int, int] | None = None,
        keys: Iterable[bytes | str] | None = None,
        skip_deleted: bool = False,
        receive_queue_size: int = RECEIVE_QUEUE_MESSAGES,
        on_corrupt: str = "stop",
    ) -> AsyncRangeReader:
        """Reads `ranges`, {segment id: (first offset, offset behind the last)}, and then it is done.

        One segment after the other, parents before children, each in the order of its offsets; what belongs to no
        committed transaction is left out. `buckets`: (first, last), only entries whose smallest bucket hash lies
        there: tasks whose `buckets` tile 0..65535 share the entries out, each to one of them, and where they are cut
        at bucket boundaries, a key is in one task. `keys`: entries that hold none of these may be left out; what comes
        is not filtered further. `skip_deleted`: leave out what retention has deleted, and say so in `deleted`, rather
        than raise NotFoundError where it is met. `receive_queue_size`: messages fetched ahead. `on_corrupt`: a bad
        entry ends the reading with CorruptionError ("stop"), or is passed by, logged and counted ("skip").

        Raises NotFoundError, ConnectError, TimeoutError; InvalidArgumentError, also for a range beyond a segment's end.
        """
        plan = ReadPlan(check_ranges(ranges), buckets, check_keys(keys), skip_deleted)
        options = ConsumerOptions(
            name=self._make_name("consumer"),
            instance=self._make_name("instance"),
            receive_queue_size=receive_queue_size,
            create_topic=False,
            on_corrupt=on_corrupt,
        )
        reader = AsyncRangeReader(self._pool, TopicName.parse(topic), options, plan)
        made: AsyncRangeReader = await self._started(reader, reader.start)
        return made
