"""`Tails`: learns that there may be new messages in a topic, so that its end is not requested again and again."""

from __future__ import annotations

from collections.abc import Mapping

from engine.client.net.link import CONSUMER, Link
from engine.client.topic.layout import SegmentView
from engine.client.topic.session import TopicSession
from engine.errors import EngineError
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.commands import Header


class Tails:
    """Readers behind the last messages of segments, each with credit for the next message there.

    A segment's owner sends a message to readers before it confirms it to the producer. Any event ends all readers for
    good: a message, a sealed segment, another layout, a lost connection, a refusal. Then the ends are requested again,
    and another Tails is made. Loop thread only.
    """

    def __init__(self, session: TopicSession, name: str, ends: Mapping[int, int]) -> None:
        self._session = session
        self._layout = session.layout
        self._name = name
        self._readers: list[Link] = []
        self._missing = len(ends)  # readers that are not attached yet
        self._over = False
        for segment_id, end in ends.items():
            view = self._layout.segments[segment_id]
            session.pool.tasks.spawn(self._read(view, end), name=f"listen to {view.name}")

    async def _read(self, view: SegmentView, end: int) -> None:
        pool = self._session.pool

        def request_of(ident: int) -> commands.Subscribe:
            return commands.Subscribe(
                consumer_id=ident, topic=view.name, consumer_name=self._name, mode=DeliveryMode.READER, start=end
            )

        if self._over:
            return
        link = Link(pool, CONSUMER, self)
        self._readers.append(link)
        try:
            answer = await link.open(view.url, request_of, pool.options.operation_timeout)
        except EngineError:
            self.close()
            return
        if answer is not None:
            link.connection.stream.send(commands.Flow(consumer_id=link.ident, messages=1, bytes=1))
            self._missing -= 1

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over

    @property
    def quiet(self) -> bool:
        """Whether all readers are attached and nothing has arrived, not even a part of a frame."""
        if self._over or self._missing or not self._session.connected or self._session.layout is not self._layout:
            return False
        return not any(link.connection.stream.pending_bytes for link in self._readers)

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A message, the end of a segment, or of the reader."""
        self.close()

    def resume_writing(self) -> None:
        """It writes almost nothing."""

    def link_ended(self, error: EngineError) -> None:
        """End the other readers as well."""
        self.close()

    def close(self) -> None:
        """End all readers. Idempotent."""
        self._over = True
        readers, self._readers = self._readers, []
        for link in readers:
            link.close()
