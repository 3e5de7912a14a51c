"""A receiver's accounts, as tables: what arrives is queued or due until it is credited, and each is credited once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine._native.consume.entry_queue import EntryQueue
from engine.client.base.options import ClientOptions, ConsumerOptions
from engine.client.consume.attachment import Attachment
from engine.client.consume.receiver import Receiver
from engine.client.net.pool import Pool
from engine.client.topic.layout import TopicLayout
from engine.clock import SystemClock
from engine.errors import ConnectError, CorruptionError
from engine.limits import RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.subscriptions import DeliveryMode
from engine.wire.commands import Message
from tests.kit.fake_broker import URL
from tests.kit.fake_entries import SALT, block

WINDOW = 100  # messages


class Consumer(Receiver):
    """Of two segments, each attached as far as it can tell."""

    def __init__(self) -> None:
        pool = Pool((URL,), ClientOptions(None, SystemClock(), random.Random(1)))  # type: ignore[arg-type]
        super().__init__(pool, TopicName.parse("t"), ConsumerOptions("c", "i", "s", receive_queue_size=WINDOW))
        self.flows: list[tuple[int, int, int]] = []
        for ident in (0, 1):
            self.attachments[ident] = Served(self, ident)
        self._pool_left = self.pool.memory.consumer_came()

    def layout_changed(self, layout: TopicLayout) -> None: ...

    def arrive(self, segment: int, first: int, values: list[bytes], **fields: Any) -> None:
        data = block(segment, first, values)
        header = Message(**{"consumer_id": 1, "segment_id": segment, "salt": SALT, "messages": len(values)} | fields)
        self.blocks_came(self.attachments[segment], header, memoryview(data))

    def take(self, count: int) -> int:
        """So many messages, one by one; how many there were."""
        taken = 0
        while taken < count and self._pop_message() is not None:
            self._popped()
            taken += 1
        return taken

    def flowed(self) -> dict[int, int]:
        """Messages that brokers were granted since the windows, by segment."""
        found: dict[int, int] = {}
        for segment, messages, _ in self.flows:
            found[segment] = found.get(segment, 0) + messages
        return {segment: messages for segment, messages in found.items() if messages}

    def check(self) -> None:
        """What arrived and is not credited is queued, or due as soon as enough of it is."""
        due = self._pushed_messages - self._queue.messages - self._credited_messages
        assert due >= 0
        assert self._pushed_bytes - self._queue.bytes - self._credited_bytes >= 0
        assert 4 * due < self._window_messages
        share = self._budget_share
        assert (share.held, share.attachments) == (self._pushed_bytes - self._credited_bytes, len(self.attachments))


class Served(Attachment):
    """Attached; its FLOW frames are kept."""

    def __init__(self, consumer: Consumer, ident: int) -> None:
        super().__init__(consumer, ident, f"segment-{ident}", DeliveryMode.EXCLUSIVE)
        self.consumer = consumer
        self.serving = True
        self.progress.begin(0, 0, None)

    @property
    def connected(self) -> bool:
        return self.serving

    def grant(self, messages: int, size: int) -> None:
        if not self.broken and (messages > 0 or size > 0):
            self.consumer.flows.append((self.segment_id, messages, size))

    def begin(self) -> None: ...


def attached() -> Consumer:
    made = Consumer()
    for attachment in made.attachments.values():
        made.attached(attachment)
    return made


async def test_windows_are_the_budget_in_equal_parts():
    consumer = attached()
    assert consumer.flowed() == {0: WINDOW // 2, 1: WINDOW // 2}
    half = WINDOW // 2, RECEIVE_QUEUE_BYTES // 2
    assert [a.window for a in consumer.attachments.values()] == [half, half]


def granted_consumer() -> Consumer:
    """Its windows are granted; what is granted from now on is kept."""
    consumer = attached()
    consumer.flows.clear()
    return consumer


VALUES = [b"%d" % i for i in range(20)]


@pytest.mark.parametrize(
    ("taken", "flowed"),
    [(0, {}), (12, {}), (13, {0: 13}), (20, {0: 13}), (26, {0: 20, 1: 6}), (40, {0: 20, 1: 19})],
)
async def test_credit_goes_back_a_quarter_of_a_window_at_a_time(taken: int, flowed: dict[int, int]):
    """A frame for every message would cost more than the message."""
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES)
    granted.arrive(1, 0, VALUES)
    assert granted.take(taken) == taken
    granted.check()
    assert granted.flowed() == flowed


def lose(consumer: Consumer) -> None:
    consumer.attachments[0].progress.lost()
    consumer.detached(consumer.attachments[0])


async def test_what_is_queued_of_a_lost_attachment_is_dropped_without_credit():
    """It comes again, over an attachment with a window of its own."""
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES)
    granted.arrive(1, 0, VALUES)
    lose(granted)
    assert granted.attachments[0].window is None
    granted.check()
    assert granted.take(40) == 20
    assert granted.flowed() == {1: 13}
    granted.check()


async def test_a_segment_that_cannot_be_read_on_fails_behind_what_is_good():
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES)
    granted.broken_off(granted.attachments[0], CorruptionError("its disk"))
    assert granted.take(20) == 20
    with pytest.raises(CorruptionError):
        await granted.receive(timeout=0)
    granted.arrive(1, 0, VALUES)
    assert granted.take(40) == 20
    assert granted.flowed().get(0, 0) <= 20


async def test_what_comes_again_after_a_loss_is_delivered_but_for_what_is_acknowledged():
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES)
    assert granted.take(5) == 5
    lose(granted)
    assert granted.waiting == 0
    attachment = granted.attachments[0]
    attachment.progress.begin(3, 3, None)  # the cursor: two of those that were taken are delivered again
    granted.attached(attachment)
    granted.arrive(0, 0, VALUES)
    assert granted.waiting == 17
    attachment.note(10, (), ())  # an acknowledgement from before the loss is through
    assert granted.waiting == 10
    granted.check()


async def test_what_is_parked_counts_as_credited_and_brings_no_flow():
    """A segment on its way out: what it still sends is neither received nor asked for."""
    granted = granted_consumer()
    attachment = granted.attachments[0]
    attachment.drain(EntryQueue(granted.topic, lambda *_: None, None))
    granted.arrive(0, 0, VALUES)
    assert granted.waiting == 0
    assert granted.flowed() == {}
    assert attachment.parked is not None
    assert attachment.parked.messages == 20
    granted.check()


async def test_messages_before_the_cursor_are_credited_at_once():
    """They are for none of its receives, so no receive would give their credit back."""
    granted = granted_consumer()
    granted.attachments[0].progress.begin(13, 13, None)
    granted.arrive(0, 0, VALUES)
    assert granted.waiting == 7
    assert granted.flowed() == {0: 13}
    granted.check()


async def test_messages_that_the_broker_did_not_charge_bring_no_credit():
    """Those of a block that it has left out itself."""
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES, skip=[[0, 18]], messages=1)
    assert granted.waiting == 1
    assert granted.flowed() == {}
    granted.check()


async def test_a_closed_receiver_holds_nothing():
    granted = granted_consumer()
    granted.arrive(0, 0, VALUES)
    await granted.close()
    assert granted.waiting == 0
    share = granted._budget_share
    assert (share.held, share.attachments) == (0, 0)
    assert (granted._budget.held, granted._budget.attachments) == (0, 0)


class Topic:
    """The session of a topic; each attempt to attach goes through `at`."""

    layout = None

    def __init__(self, at: Callable[[Any], Awaitable[None]]) -> None:
        self._at = at

    async def at(self, url_of: Any, work: Any) -> None:
        await self._at(work)

    def refused(self, count: int) -> None: ...

    async def wait_changed(self, seen: object, pause: float) -> None:
        await asyncio.Event().wait()


async def test_an_attachment_that_was_given_up_subscribes_no_more():
    """Nothing would close what it opens, and the broker would keep messages for it."""
    consumer, tried = Consumer(), asyncio.Event()
    attachment = Attachment(consumer, 2, "segment-2", DeliveryMode.QUEUE)

    async def at_last(work: Any) -> None:
        attachment.give_up()
        await work(URL)
        tried.set()

    consumer.session = Topic(at_last)  # type: ignore[assignment]
    consumer.pool.get = lambda url: pytest.fail(f"asked for a connection to {url}")  # type: ignore[assignment]
    attachment.begin()
    await asyncio.wait_for(tried.wait(), 60)
    assert not attachment.connected


async def test_a_broken_segment_that_is_lost_as_well_comes_again_from_the_cursor():
    """What was queued is dropped, with the mark of the damage: another broker may be able to read on."""
    consumer, lost = Consumer(), asyncio.Event()
    attachment = Attachment(consumer, 0, "segment-0", DeliveryMode.EXCLUSIVE)
    attachment.progress.begin(0, 0, None)
    consumer.attachments[0] = attachment
    consumer.attached(attachment)
    consumer.arrive(0, 0, VALUES)
    attachment.broken = True
    consumer.broken_off(attachment, CorruptionError("its disk"))

    async def fails(work: Any) -> None:
        lost.set()
        raise ConnectError("lost before the answer")

    consumer.session = Topic(fails)  # type: ignore[assignment]
    attachment.begin()
    await asyncio.wait_for(lost.wait(), 60)
    await asyncio.wait_for(attachment.tried.wait(), 60)
    assert not attachment.broken
    assert consumer.take(1) == 0
    attachment.give_up()
