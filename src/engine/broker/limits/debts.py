"""`Debts`: what producers have sent beyond their credit, and are gone.

A client that does not wait for credit, or comes without that feature, may have sent more than it was granted when its
producer ends. That is still taken from the buckets, as if the producer were there: in turns with the others, so that a
client that comes back again and again does not get past a rate. What the producers of a role owe to a bucket, attached
or gone, has a limit as well: above it no other one of the role attaches, until enough is paid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from engine.broker.limits.bucket import Bucket
from engine.broker.limits.throttle import Throttle
from engine.errors import TimeoutError
from engine.limits import ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX
from engine.model.names import TopicName

log = logging.getLogger(__name__)

# Beyond its credit: more than is on its way when a limit begins to hold.
AHEAD_BYTES = 2 * ENTRY_SIZE_MAX
AHEAD_MESSAGES = 16 * ENTRY_MESSAGES_MAX


class Debts:
    """One for each topic and role that owes something. Loop thread only.

    `buckets`: those that hold for what a role publishes to a topic.
    """

    def __init__(self, buckets: Callable[[TopicName, str], tuple[Bucket, ...]]) -> None:
        self._buckets = buckets
        self._owed: dict[tuple[TopicName, str], Throttle] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def __iter__(self) -> Iterator[tuple[TopicName, str]]:
        """The topics and roles that owe something."""
        return iter(self._owed)

    def owe(self, topic: TopicName, role: str, messages: int, size: int) -> None:
        """So much was sent beyond the credit, by a producer that is gone; 0 or below: nothing."""
        if messages <= 0 and size <= 0:
            return
        key = topic, role
        owed = self._owed.get(key)
        if owed is None:
            owed = self._owed[key] = Throttle(self._buckets(topic, role), lambda *_: self._paid(key), role)
        owed.ask(max(messages, 0), max(size, 0))

    def change(self) -> list[tuple[TopicName, str]]:
        """Go by the limits as they are now. Of these topics and roles they are not known."""
        unknown = []
        for (topic, role), owed in list(self._owed.items()):
            try:
                owed.change(self._buckets(topic, role))
            except TimeoutError as e:
                log.debug("what %s owes at %s is paid as before: %s", role, topic, e)
                unknown.append((topic, role))
        return unknown

    def too_many(self, topic: TopicName, role: str) -> bool:
        """Whether the producers of a role owe so much that no other one may attach to the topic."""
        for bucket in self._buckets(topic, role):
            if bucket.wait_s <= 0:
                continue
            messages, size = bucket.owed_by(role)
            rate, bytes_rate = bucket.messages_per_s, bucket.bytes_per_s
            if rate is not None and messages > max(AHEAD_MESSAGES, rate):
                return True
            if bytes_rate is not None and size > max(AHEAD_BYTES, bytes_rate):
                return True
        return False

    def _paid(self, key: tuple[TopicName, str]) -> None:
        owed = self._owed[key]
        if owed.missing_messages <= 0 and owed.missing_bytes <= 0:
            owed.close()
            del self._owed[key]
