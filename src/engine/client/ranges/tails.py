"""`Tails`: hears that there may be more in a topic, so that nobody needs to ask for it again and again."""

from __future__ import annotations

from collections.abc import Mapping

from engine.client.consume.attachment import READER
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.topic.session import SegmentView, TopicSession
from engine.errors import EngineError
from engine.wire import commands
from engine.wire.commands import Header


class Tails:
    """Readers behind the last messages of segments, each with credit for what comes there first.

    A segment's owner sends that before it confirms it to its producer. Whatever happens ends it for good: something
    came, a segment was sealed, the layout is another, a connection was lost, an owner refused. Then it is time to ask,
    and for another one of these. Loop thread only.
    """

    def __init__(self, session: TopicSession, name: str, ends: Mapping[int, int]) -> None:
        self._session = session
        self._layout = session.layout
        self._name = name
        self._readers: list[tuple[Connection, int]] = []
        self._missing = len(ends)  # those that the broker has not confirmed yet
        self._over = False
        for segment_id, end in ends.items():
            view = self._layout.segments[segment_id]
            session.pool.tasks.spawn(self._read(view, end), name=f"listen to {view.name}")

    async def _read(self, view: SegmentView, end: int) -> None:
        pool = self._session.pool
        try:
            connection = await pool.get(view.url)
            if self._over:
                return
            ident = connection.next_id()
            connection.attach(ident, self)
            self._readers.append((connection, ident))
            reader = commands.Subscribe(
                consumer_id=ident, topic=view.name, consumer_name=self._name, mode=READER, start=end
            )
            await connection.request(reader, pool.options.operation_timeout)
        except EngineError:
            self.close()
            return
        if not self._over:
            connection.stream.send(commands.Flow(consumer_id=ident, messages=1, bytes=1))
            self._missing -= 1

    @property
    def over(self) -> bool:
        """Whether it hears nothing any more."""
        return self._over

    @property
    def quiet(self) -> bool:
        """Whether all owners would have told, and none has, not even the beginning of something."""
        if self._over or self._missing or not self._session.connected or self._session.layout is not self._layout:
            return False
        return not any(connection.stream.pending_bytes for connection, _ in self._readers)

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A message, the end of a segment, or of the reader."""
        self.close()

    def resume_writing(self) -> None:
        """It writes next to nothing."""

    def connection_lost(self, error: EngineError) -> None:
        """The others are of no use alone."""
        self.close()

    def close(self) -> None:
        """Hear no more. Idempotent."""
        self._over = True
        readers, self._readers = self._readers, []
        for connection, ident in readers:
            connection.detach(ident)
            if connection.lost is None:
                future = connection.start_request(commands.CloseConsumer(consumer_id=ident))
                future.add_done_callback(ignore_outcome)
