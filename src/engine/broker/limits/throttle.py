"""`Throttle`: what one producer or consumer may send or be sent, as credit that it is given in advance.

    ask(messages, bytes) ──> nothing owed in any bucket ──> a portion is taken from all of them, and granted; again
                        └──> else it waits in the queue of the bucket that owes, and goes on when its turn comes

Credit is paid when it is granted. One that has used more than its credit has asked for more, so it pays later. The
buckets of a topic, its namespace, its tenant, the broker and a role hold together: all of them are taken from.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.broker.limits.bucket import Bucket

Grant = Callable[[int, int], None]  # messages, bytes
_ROUNDS_MAX = 64  # portions that are granted at once


class Throttle:
    """Loop thread only. `missing_messages`, `missing_bytes`: asked for and not granted."""

    __slots__ = ("_buckets", "_grant", "_serving", "_waits_at", "missing_bytes", "missing_messages", "owner")

    def __init__(self, buckets: tuple[Bucket, ...], grant: Grant, owner: str = "") -> None:
        """`grant`: called with what is granted, from ask() and later. `owner`: the role that it is of."""
        self.owner = owner
        self.missing_messages = 0
        self.missing_bytes = 0
        self._grant = grant
        self._buckets: tuple[Bucket, ...] = ()
        self._waits_at: Bucket | None = None
        self._serving = False
        self._join(buckets)

    @property
    def waits(self) -> bool:
        """Whether something is asked for and not granted."""
        return self._waits_at is not None

    def ask(self, messages: int, size: int) -> None:
        """Ask for credit; what of it is there is granted at once."""
        self.missing_messages += messages
        self.missing_bytes += size
        if self._waits_at is None:
            self._serve()

    def change(self, buckets: tuple[Bucket, ...]) -> None:
        """Other buckets hold from now on; of none, all that is missing is granted."""
        if buckets != self._buckets:
            self._leave()
            self._join(buckets)
            self._serve()

    def charge(self, messages: int, size: int) -> None:
        """So much was used beyond what was granted: it is owed to each bucket at once."""
        for bucket in self._buckets:
            bucket.take(messages, size)

    def close(self) -> None:
        """Ask for nothing more. Idempotent."""
        self._leave()

    def portion(self) -> tuple[int | None, int | None]:
        """Messages and bytes that it may be granted at once; None: any number."""
        messages: int | None = None
        size: int | None = None
        for bucket in self._buckets:
            most, largest = bucket.portion()
            messages = most if messages is None else messages if most is None else min(messages, most)
            size = largest if size is None else size if largest is None else min(size, largest)
        return messages, size

    def turn_came(self) -> None:
        """The bucket at which it waits owes nothing."""
        self._waits_at = None
        self._serve(once=True)

    def _join(self, buckets: tuple[Bucket, ...]) -> None:
        self._buckets = buckets
        for bucket in buckets:
            bucket.members.add(self)

    def _leave(self) -> None:
        if self._waits_at is not None:
            self._waits_at.leave(self)
            self._waits_at = None
        for bucket in self._buckets:
            bucket.members.discard(self)
        self._buckets = ()

    def _serve(self, *, once: bool = False) -> None:
        """Grant portions while nothing is owed: `once`, a single one, so that the others that wait have theirs."""
        if self._serving:
            return
        self._serving = True
        try:
            rounds = 0
            while (self.missing_messages > 0 or self.missing_bytes > 0) and self._waits_at is None:
                if (owing := self._owing(rounds > 0 and (once or rounds >= _ROUNDS_MAX))) is None:
                    self._grant_portion()
                    rounds += 1
                else:
                    self._waits_at = owing
                    owing.queue(self)
        finally:
            self._serving = False

    def _owing(self, yields: bool) -> Bucket | None:
        """The bucket to wait at; None: go on."""
        for bucket in self._buckets:
            if bucket.wait_s > 0:
                return bucket
        return self._buckets[0] if yields and self._buckets else None

    def _grant_portion(self) -> None:
        messages, size = self.missing_messages, self.missing_bytes
        most, largest = self.portion()
        if most is not None:
            messages = min(messages, most)
        if largest is not None:
            size = min(size, largest)
        for bucket in self._buckets:
            bucket.take(messages, size)
        self.missing_messages -= messages
        self.missing_bytes -= size
        self._grant(messages, size)
