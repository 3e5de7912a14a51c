"""`LimitedProducer`: what holds for one producer where there are limits: credit for its rates, and messages' sizes.

A peer with the feature PUBLISH_CREDIT is given credit, and sends no more than that: other producers on its connection,
acknowledgements and pings go on. So they do with a peer without the feature, as clients of Apache Pulsar are: a receipt
is withheld until what it is for is paid, and a client sends no more than it may have without receipts. Reading from the
connection stops at last, for a producer that has sent far more than it had credit for, or could have receipts for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from engine._native.format.entry import Entry
from engine._native.format.heads import apparent_heads
from engine.broker.limits.debts import AHEAD_BYTES, AHEAD_MESSAGES
from engine.broker.limits.limits import PUBLISH
from engine.broker.limits.throttle import Throttle
from engine.broker.pools.open_entries import DECOMPRESSED_MAX
from engine.broker.pools.ports import Pause
from engine.broker.segment.producer import Part
from engine.errors import EngineError, MessageTooLargeError
from engine.limits import ENTRY_HEADER_SIZE, ENTRY_MESSAGES_MAX
from engine.model.compression import decompressor
from engine.model.limits import Limit
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.limits.attendance import Attendance
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.segment.producer import Producer

# Beyond what is paid, of a peer without the feature: about as much as a client has without receipts.
UNPAID_BYTES = 1 << 20
UNPAID_MESSAGES = 10_000
# Of an entry beside its messages: its header, a name, and for each message its place in the columns.
_OVERHEAD = ENTRY_HEADER_SIZE + 2048
_OVERHEAD_EACH = 64
_U64_MAX = 2**64 - 1


class _Withheld(NamedTuple):
    """The receipt of an entry. `messages`, `bytes`: all that was stored up to it."""

    messages: float
    bytes: float
    sequence: int
    offset: int


class _Advance:
    """Credit of one kind: `size` was asked for in advance, of which `used` is used."""

    __slots__ = ("size", "used")

    def __init__(self) -> None:
        self.size = self.used = 0

    @property
    def is_half_used(self) -> bool:
        return 2 * self.used >= self.size > 0

    def beyond(self, missing: int) -> int:
        """What was used and not granted. `missing`: what was asked for and not granted."""
        return self.used + missing - self.size

    def due(self, portion: int | None) -> int:
        """What to ask for, so that a portion is there in advance; None: this kind is not limited."""
        before, used, self.used = self.size, self.used, 0
        if portion is None:
            self.size = 0
            return 0
        due = used + portion - before
        self.size = portion if due >= 0 else before - used
        return max(due, 0)


class LimitedProducer:
    """Loop thread only. Made anew for each attachment; change() follows the limits."""

    __slots__ = ("_attendance", "_bytes", "_counts_messages", "_debts", "_holding", "_largest", "_messages",
                 "_producer", "_received", "_sent_bytes", "_sent_messages", "_stored_bytes", "_stored_messages",
                 "_throttle", "_withheld")  # fmt: skip

    def __init__(self, producer: Producer, limits: BrokerLimits) -> None:
        self._producer = producer
        self._debts = limits.debts
        self._throttle: Throttle | None = None
        self._holding = False
        self._largest: Limit | None = None
        self._counts_messages = False
        self._messages, self._bytes = _Advance(), _Advance()
        # What has come and what of it is durable, since this was made; of the latter, what there are receipts for; and
        # the receipts that wait.
        self._sent_messages = self._sent_bytes = self._stored_messages = self._stored_bytes = 0
        self._received = 0, 0
        self._withheld: deque[_Withheld] = deque()
        topic, role = producer.hosted.name.topic, producer.connection.role
        self._attendance: Attendance = limits.attend(limits.producers, topic, role, producer.name, None)
        try:
            self.change(limits)
        except BaseException:
            self._attendance.close()  # limits that are not known any more: it is made again, and counts once
            raise

    def change(self, limits: BrokerLimits) -> None:
        """Go by the limits as they are now."""
        producer = self._producer
        topic = producer.hosted.name.topic
        self._largest = limits.of_topic(topic).get("message_bytes_max")
        buckets = limits.buckets(topic, producer.connection.role, PUBLISH)
        self._counts_messages = self._largest is not None or any(b.messages_per_s is not None for b in buckets)
        if self._throttle is None:
            if not buckets:
                return
            self._throttle = self._attendance.throttle = Throttle(buckets, self._grant, producer.connection.role)
        else:
            self._throttle.change(buckets)
        if not buckets:
            self._throttle = self._attendance.throttle = None
            self._messages, self._bytes = _Advance(), _Advance()  # a later limit gives credit anew
            self._send_credit(None, None)
            self._release()
            self._send_receipts()
        else:
            messages, size = self._throttle.portion()
            self._send_credit(None if messages is None else 0, None if size is None else 0)  # which kinds there are
            self._top_up(self._throttle)

    def sent(self, payload: memoryview) -> list[Part] | None:
        """Count a frame of entries. None: all of them are taken; else its parts, in order."""
        messages, parts = self._look_at(payload) if self._counts_messages else (0, None)
        if (throttle := self._throttle) is not None:
            self._messages.used += messages
            self._bytes.used += len(payload)
            self._sent_messages += messages
            self._sent_bytes += len(payload)
            if throttle.waits or self._messages.is_half_used or self._bytes.is_half_used:
                self._top_up(throttle)
            if self._is_ahead(throttle) and not self._holding:
                self._holding = True
                self._producer.connection.pressure.hold(Pause.RATE)
        return parts

    # -- receipts --------------------------------------------------------------------------------------------------

    def stored(self, messages: int, size: int) -> None:
        """So much has become durable.

        What came while there was no limit of a kind is not counted as sent, and is none of what is owed later.
        """
        self._stored_messages = min(self._stored_messages + messages, self._sent_messages)
        self._stored_bytes = min(self._stored_bytes + size, self._sent_bytes)

    def withholds(self, sequences: list[int], offsets: list[int]) -> bool:
        """Whether the receipts of what has become durable now are sent by this, each when it is paid for.

        Entries that became durable together share their cost evenly.
        """
        (messages, size), self._received = self._received, (self._stored_messages, self._stored_bytes)
        if self._producer.connection.takes_credit or not (self._withheld or any(self._owed())):
            return False
        count = len(sequences)
        each, each_size = (self._stored_messages - messages) / count, (self._stored_bytes - size) / count
        self._withheld.extend(
            _Withheld(messages + number * each, size + number * each_size, sequence, offset)
            for number, (sequence, offset) in enumerate(zip(sequences, offsets, strict=True), 1)
        )
        self._send_receipts()
        return True

    def take_withheld(self) -> tuple[list[int], list[int]]:
        """All that waits, to be sent now."""
        return self._take(len(self._withheld))

    def _owed(self) -> tuple[int, int]:
        """Messages and bytes that have come and are not granted."""
        throttle = self._throttle
        if throttle is None:
            return 0, 0
        messages, size = throttle.portion()
        return (
            0 if messages is None else max(0, self._messages.beyond(throttle.missing_messages)),
            0 if size is None else max(0, self._bytes.beyond(throttle.missing_bytes)),
        )

    def _send_receipts(self) -> None:
        """Send those that are paid for. Of messages that came before there was a limit nothing is owed."""
        if not self._withheld:
            return
        messages, size = self._owed()
        paid_messages, paid_bytes, count = self._sent_messages - messages, self._sent_bytes - size, 0
        for receipt in self._withheld:
            if (messages and receipt.messages > paid_messages) or (size and receipt.bytes > paid_bytes):
                break
            count += 1
        if count:
            self._producer.send_receipt(*self._take(count))

    def _take(self, count: int) -> tuple[list[int], list[int]]:
        taken = [self._withheld.popleft() for _ in range(count)]
        return [receipt.sequence for receipt in taken], [receipt.offset for receipt in taken]

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """It is detached. Idempotent."""
        throttle, self._throttle = self._throttle, None
        self._attendance.close()
        self._release()
        if throttle is not None:
            producer = self._producer
            messages = self._messages.beyond(throttle.missing_messages)
            size = self._bytes.beyond(throttle.missing_bytes)
            self._debts.owe(producer.hosted.name.topic, producer.connection.role, messages, size)

    def _look_at(self, payload: memoryview) -> tuple[int, list[Part] | None]:
        """How many messages there are, and the parts of the frame where a message is too large.

        An entry that has more bytes than so many messages of the largest size is refused unopened. In one with fewer,
        but more than a single message may have, the sizes of its messages are looked at, unless it is encrypted, or
        compressed and very large.
        """
        messages, parts, at = 0, list[Part](), 0
        for head in apparent_heads(payload):
            said = (head.last + 1 - head.first) & _U64_MAX  # not checked yet: any offset and any count may stand there
            count = min(max(said, 1), ENTRY_MESSAGES_MAX)
            messages += count
            limit = self._largest
            if limit is None or (size := _size_beyond(payload[head.start : head.stop], count, limit.value)) is None:
                continue
            if at < head.start:
                parts.append(Part(payload[at : head.start], None))
            text = f"message_bytes_max of {limit.origin} must be at most {limit.value}, got {size} bytes"
            refusal = MessageTooLargeError(text)
            parts.append(Part(payload[head.start : head.stop], refusal))
            at = head.stop
        if parts and at < len(payload):
            parts.append(Part(payload[at:], None))
        return messages, parts or None

    def _top_up(self, throttle: Throttle) -> None:
        """Ask for what was used, and for as much in advance as a portion is now."""
        messages, size = throttle.portion()
        throttle.ask(self._messages.due(messages), self._bytes.due(size))

    def _is_ahead(self, throttle: Throttle) -> bool:
        """Whether what is asked for and not granted is too much to read on; also in the middle of several grants."""
        if not self._producer.connection.takes_credit:
            return throttle.missing_bytes > UNPAID_BYTES or throttle.missing_messages > UNPAID_MESSAGES
        return throttle.missing_bytes > AHEAD_BYTES or throttle.missing_messages > AHEAD_MESSAGES

    def _grant(self, messages: int, size: int) -> None:
        throttle = self._throttle
        if throttle is not None:
            most, largest = throttle.portion()
            self._send_credit(None if most is None else messages, None if largest is None else size)
            if not self._is_ahead(throttle):
                self._release()
            self._send_receipts()

    def _send_credit(self, messages: int | None, size: int | None) -> None:
        producer = self._producer
        if producer.connection.takes_credit and not producer.closed:
            producer.connection.send(commands.PublishCredit(producer_id=producer.ident, messages=messages, bytes=size))

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            self._producer.connection.pressure.release(Pause.RATE)


def _size_beyond(data: memoryview, count: int, most: int) -> int | None:
    """The size of a message of an entry that is larger than `most`; None: there is none, or the entry is damaged.

    Of an entry that is not opened, and has more bytes than `count` messages may have: their mean size.
    """
    try:
        entry = Entry(data)
        size = max(entry.raw_size, entry.size if entry.encrypted else 0)
        if size <= most:
            return None
        if size > count * (most + _OVERHEAD_EACH) + _OVERHEAD:
            return -(-size // count)
        if entry.encrypted or (entry.compression and size > DECOMPRESSED_MAX):
            return None
        largest = entry.largest_message(decompressor())
    except EngineError:
        return None  # storage refuses it, and says why
    return largest if largest > most else None
