"""The blocking readers of planned work: a topic's segments, and ranges of them."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Self

from engine.aio.portal import Portal
from engine.client import (
    AsyncRangeReader,
    AsyncTopicReader,
    AsyncTopicView,
    Checkpoint,
    Message,
    MessageBatch,
    TopicSegments,
)
from engine.client.base.options import check_count
from engine.client.ranges.caller_reads import CallerReads
from engine.client.ranges.range_reader import BATCH_MESSAGES
from engine.errors import AlreadyClosedError
from engine.sync.closing import close_collected, run_to_close

if TYPE_CHECKING:
    from engine.client.ranges.topic_view import Schemas


class TopicView:
    """Follows one topic. Made by `client.topic_view()`; usable with `with`."""

    def __init__(self, portal: Portal, view: AsyncTopicView) -> None:
        self._portal = portal
        self._view = view.disown()

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._view.topic

    def segments(self, *, exact: bool = False) -> TopicSegments:
        """The present segments with their end offsets; the identical object as last time if nothing has changed.

        Each active segment's owner is asked, all at the same time: what was acknowledged before the call is in it.
        `exact`: so are those of settled segments, of whose beginning retention may have deleted something since they
        were asked first; and the layout is looked up anew rather than as of the last word about it. Raises
        NotFoundError once the topic is gone, ConnectError, TimeoutError, AlreadyClosedError.
        """
        return self._portal.run(self._view.segments(exact=exact))

    def listen(self) -> None:
        """From what segments() said last on, hear of changes rather than ask again and again: `unchanged` tells.

        It ends with the first change, and with whatever keeps an owner from telling; call it again when segments() has
        said the same twice. It waits for nothing.
        """
        self._portal.call(self._view.listen)

    @property
    def unchanged(self) -> bool:
        """Whether what segments() said last holds, by what the owners have told since listen(). False: ask.

        They tell of a message before they acknowledge it. So all that was acknowledged is known that has had the time
        to come here.
        """
        return self._view.unchanged

    def resolve(self, place: Checkpoint) -> Checkpoint:
        """A place (earliest, latest, a time) as a position in every segment; positions as they are.

        Raises InvalidArgumentError for positions in another topic, also in an earlier one of the same name; and as
        segments().
        """
        return self._portal.run(self._view.resolve(place))

    def schemas(self) -> Schemas:
        """The schemas with which the topic's messages were written, the oldest first; none: bytes as they are.

        Raises NotFoundError, ConnectError, TimeoutError, AlreadyClosedError.
        """
        return self._portal.run(self._view.schemas())

    def close(self) -> None:
        """Stop following. Idempotent."""
        run_to_close(self._portal, self._view.close)

    def __del__(self) -> None:
        view = self.__dict__.get("_view")
        if view is not None and not view.finished:
            close_collected(self._portal, repr(self), view.close)

    def __repr__(self) -> str:
        return repr(self._view).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def handing_over(opening: Coroutine[Any, Any, AsyncRangeReader]) -> AsyncRangeReader:
    """A reader for RangeReader. Until it has asked where files are, nothing is read of them."""
    reader = await opening
    reader.hands_over = True
    return reader


class RangeReader:
    """Reads given offsets of given segments. Made by `client.range_reader()`; iterate it, or its batches(), to the end.

    Usable with `with`.
    """

    def __init__(self, portal: Portal, reader: AsyncRangeReader) -> None:
        self._portal = portal
        self._reader = reader.disown()
        self._caller_reads: CallerReads | None = None
        portal.fork_listeners.add(self)

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._reader.topic

    @property
    def deleted(self) -> dict[int, int]:
        """{segment id: how many messages of its range retention had deleted}, as far as it has read. A new dict."""
        return self._portal.call(lambda: self._reader.deleted)

    def next_batch(self, max_messages: int = BATCH_MESSAGES) -> MessageBatch | None:
        """The next messages, at most `max_messages`; None at the end.

        Raises NotFoundError for what retention has deleted, AlreadyClosedError when it was closed before the end,
        CorruptionError for damaged data, ConnectError, TimeoutError.
        """
        check_count("max_messages", max_messages)
        while True:
            found: MessageBatch | CallerReads | None = self._caller_reads or self._reader.take_now(max_messages)
            if found is None:
                found = self._portal.run(self._reader.next_batch_or_reads(max_messages))
            if not isinstance(found, CallerReads):
                return found
            self._caller_reads = found
            if (batch := found.next_batch(max_messages)) is not None:
                return batch
            self._caller_reads = None
            self._portal.call(self._reader.given_back, found)

    def batches(self, max_messages: int = BATCH_MESSAGES) -> Iterator[MessageBatch]:
        """Everything, in order. Raises as next_batch()."""
        while (batch := self.next_batch(max_messages)) is not None:
            yield batch

    def __iter__(self) -> Iterator[Message]:
        """Everything, message by message. Raises as next_batch()."""
        for batch in self.batches():
            yield from batch

    def close(self) -> None:
        """Stop reading. Idempotent."""
        run_to_close(self._portal, self._reader.close)

    def end(self) -> None:
        """close(), also on the loop's own thread, where an iterator that was abandoned may be collected."""
        if self._portal.in_loop_thread:
            with contextlib.suppress(AlreadyClosedError):
                self._portal.submit(self._reader.close())
        else:
            self.close()

    def after_fork(self, error: AlreadyClosedError) -> None:
        """In a forked child: what was fetched ahead is the parent's."""

        def refuse(*args: object, **options: object) -> MessageBatch | None:
            raise error

        self.next_batch = refuse  # type: ignore[method-assign]

    def __del__(self) -> None:
        reader = self.__dict__.get("_reader")
        if reader is not None and not reader.finished:
            close_collected(self._portal, repr(self), reader.close)

    def __repr__(self) -> str:
        return repr(self._reader).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TopicReader:
    """The messages between two places of a topic, which were fixed when it was made. Made by `client.reader()`.

    Whatever reads Arrow streams reads it: `polars.from_arrow(reader)`, `pyarrow.table(reader)`, DuckDB in a query that
    names its variable. It holds nothing open: each of these reads the same messages anew, as far as it wants.
    """

    def __init__(self, portal: Portal, reader: AsyncTopicReader) -> None:
        self._portal = portal
        self._reader = reader

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._reader.topic

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of what is read."""
        return self._reader.schema

    @property
    def end(self) -> Checkpoint:
        """Where it ends: a later reader that starts here goes on with the next message of every segment."""
        return self._reader.end

    def record_batches(self) -> Iterator[Any]:
        """The messages as pyarrow.RecordBatches, segment after segment, parents before children.

        Raises SchemaError for a value that the schema cannot read; NotFoundError for what retention has deleted behind
        a start that was a position; CorruptionError, ConnectError, TimeoutError.
        """
        reader = RangeReader(self._portal, self._portal.run(handing_over(self._reader.open())))
        try:
            for batch in reader.batches():
                yield from self._reader.convert(batch)
        finally:
            reader.end()

    def to_table(self) -> Any:
        """All of it as a pyarrow.Table. Raises as record_batches()."""
        return self._reader.table_of(list(self.record_batches()))

    def __arrow_c_schema__(self) -> object:
        """Arrow's schema protocol."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's stream protocol. Messages are read as the stream is; what fails is the stream's error."""
        import pyarrow

        stream = pyarrow.RecordBatchReader.from_batches(self.schema, self.record_batches())
        return stream.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self._reader).replace("<Async", "<", 1)

    def _repr_html_(self) -> str:
        return self._reader._repr_html_()
