"""`TransactionHeaders`: the state of transactions that this broker takes part in, kept current by watches.

A part of the broker that admits work to a transaction follows it: from then on its state is in memory, and its end is
reported. A transaction is followed as long as something of it is undecided here. Of those that are not followed, the
RECENT_MAX most recent are kept, since a new transaction is used soon. So memory grows with the open transactions of
this broker, and the headers are never listed.

In a store of this machine one watch serves all transactions. Where a store keeps its history (that of a cluster), each
that is followed has a watch of its own, from the version on that was known before its header was read: a broker is told
nothing of transactions that it takes no part in. Those that were begun here are known (note()).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.aio.tasks import Supervisor
from engine.control.transactions.headers import TransactionView
from engine.errors import AlreadyClosedError, TransactionConflictError, TransactionNotFoundError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, Historied, MetadataStore, Record, Watch
from engine.model.transactions import TransactionHeader, TransactionState, id_text, parse_id

RECENT_MAX = 1024  # most recent ones that are not followed

_PREFIX = keys.transaction("")

# Called with a transaction's number and its final header; None: the header is gone. True: the listener follows it no
# more, as after release().
Listener = Callable[[int, TransactionView | None], bool | None]


class _Followed:
    """One transaction. `version`: of the header, or of its deletion, that is known here. `watching`: it alone."""

    __slots__ = ("listeners", "version", "view", "watching")

    def __init__(self, view: TransactionView | None) -> None:
        self.listeners: dict[Listener, None] = {}
        self.view = view
        self.version = -1 if view is None else view.version
        self.watching: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is open, as far as is known."""
        return self.view is not None and self.view.header.state is TransactionState.OPEN


class TransactionHeaders:
    """Loop thread only. Each listener of a transaction is called with its end, once, soon after it ended.

    A header that is known here may be older than the one in the store. Work may begin on its word; whether that work
    counts is decided by the versions of the records (model.transactions.operation_counts).
    """

    def __init__(self, metadata: MetadataStore, *, singly: bool | None = None) -> None:
        """`singly`: each transaction has a watch of its own; None: as the store is."""
        self._metadata = metadata
        self._singly = isinstance(metadata, Historied) if singly is None else singly
        self._followed: dict[int, _Followed] = {}
        self._recent: dict[int, Record] = {}  # the newest known headers of transactions that are not followed
        self._noted: dict[int, TransactionView] = {}  # likewise, those that were begun here; only where `singly`
        self._version: int | None = None  # of the store, up to which the watch has reported; None: there is no watch
        self._tasks = Supervisor("headers of transactions")
        self._closed = False

    def __len__(self) -> int:
        return len(self._followed)

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        self._closed = True
        await self._tasks.close()
        self._followed.clear()

    # -- following ---------------------------------------------------------------------------------------------------

    def follow(self, number: int, listener: Listener) -> None:
        """Call the listener when the transaction ends, until release(). The caller must read() it once."""
        self._of(number).listeners[listener] = None

    def follow_open(self, number: int, listener: Listener) -> bool:
        """Follow it if it is known to be open; whether it is. It need not be read() then."""
        followed = self._followed.get(number)
        if followed is None:
            if number not in self._recent and number not in self._noted:
                return False
            followed = self._of(number)
        view = followed.view
        if view is None or view.header.state is not TransactionState.OPEN:
            self._unless_followed(number, followed)
            return False
        followed.listeners[listener] = None
        return True

    def follow_all_open(self, numbers: list[int], listener: Listener, role: str) -> tuple[int, bool]:
        """Follow each that is known to be open and belongs to the role, up to the first that is not.

        How many it follows now, and whether that is all of them; one of another role is followed.
        """
        followed_of = self._followed.get
        for at, number in enumerate(numbers):
            followed = followed_of(number)
            if (
                followed is not None
                and followed.view is not None
                and followed.view.header.state is TransactionState.OPEN
            ):
                followed.listeners[listener] = None
            elif self.follow_open(number, listener):
                followed = followed_of(number)
            else:
                return at, False
            if role and (followed is None or followed.view is None or followed.view.header.owner != role):
                return at + 1, False
        return len(numbers), True

    def known(self, number: int) -> TransactionView | None:
        """The newest known state of a transaction that is followed."""
        followed = self._followed.get(number)
        return None if followed is None else followed.view

    def belongs_to(self, number: int, role: str) -> bool:
        """Whether a role may add to a transaction that is followed: one that it has begun; "" may add to any."""
        if not role:
            return True
        followed = self._followed.get(number)
        return followed is None or followed.view is None or followed.view.header.owner == role

    def _of(self, number: int) -> _Followed:
        followed = self._followed.get(number)
        if followed is not None:
            return followed
        if self._closed:
            raise AlreadyClosedError("the broker is closing")
        if self._version is None and not self._singly:
            self._version = self._metadata.version  # the watch reports all that is later than headers read from now on
            known = lambda: [keys.transaction(id_text(number)) for number in self._followed]  # noqa: E731
            watching = follow(self._metadata, self._watch, self._heard, known, what="the headers of transactions")
            self._tasks.spawn(watching, "headers of transactions")
        if self._singly:
            noted = self._noted.pop(number, None)
            version = self._metadata.version if noted is None else noted.version
            followed = self._followed[number] = _Followed(noted)
            followed.watching = self._tasks.spawn(self._watch_one(number, version), id_text(number))
            return followed
        record = self._recent.pop(number, None)
        followed = self._followed[number] = _Followed(None if record is None else view_of(number, record))
        return followed

    def note(self, view: TransactionView) -> None:
        """A transaction was begun here, and is likely to be used here soon."""
        if self._singly and view.number not in self._followed:
            self._noted[view.number] = view
            if len(self._noted) > RECENT_MAX:
                del self._noted[next(iter(self._noted))]

    async def _watch_one(self, number: int, version: int) -> None:
        """Follow one header behind a version, until cancelled."""
        key = keys.transaction(id_text(number))

        def heard(event: Event) -> None:
            nonlocal version
            version = max(version, event.version)
            if event.kind is not EventKind.SNAPSHOT_END:
                self._update(number, None if event.record is None else view_of(number, event.record), event.version)

        known = lambda: [key] if number in self._followed else []  # noqa: E731
        await follow(self._metadata, lambda: self._metadata.watch(key, version), heard, known, what=key)

    def release(self, number: int, listener: Listener) -> None:
        """Call the listener no more. Idempotent."""
        followed = self._followed.get(number)
        if followed is None:
            return
        followed.listeners.pop(listener, None)
        if not followed.listeners:
            self._unless_followed(number, followed)

    def _unless_followed(self, number: int, followed: _Followed) -> None:
        if not followed.listeners:
            del self._followed[number]
            if followed.watching is not None:
                followed.watching.cancel()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def authorise(self, number: int, listener: Listener) -> None:
        """Follow a transaction that is open. Raises TransactionNotFoundError; TransactionConflictError: it has ended.

        A listener that followed it before still does, also when this raises.
        """
        before = self._followed.get(number)
        mine = before is None or listener not in before.listeners
        if before is not None and not mine and before.is_open:
            return
        self.follow(number, listener)
        try:
            check_open(number, await self.read(number))
        except BaseException:
            if mine:
                self.release(number, listener)
            raise

    async def read(self, number: int) -> TransactionView | None:
        """Read the header from the store; None when there is none. Listeners are called if it has ended."""
        version = self._metadata.version
        record = await self._metadata.newest.get(keys.transaction(id_text(number)))
        followed = self._followed.get(number)
        if followed is not None and record is not None and followed.version == record.stat.version:
            return followed.view
        view = None if record is None else view_of(number, record)
        self._update(number, view, version if view is None else view.version)
        return view

    # -- watching ----------------------------------------------------------------------------------------------------

    def _watch(self) -> Watch:
        """A watch from where the last one ended, so that it does not begin with all headers."""
        return self._metadata.watch(_PREFIX, self._version)

    def _heard(self, event: Event) -> None:
        self._version = max(event.version, self._version or 0)
        if event.kind is EventKind.SNAPSHOT_END:
            return
        number = parse_id(event.key[len(_PREFIX) :])
        followed = self._followed.get(number)
        if followed is not None:
            if event.version > followed.version:
                view = None if event.record is None else view_of(number, event.record)
                self._update(number, view, event.version)
        elif self._recent.pop(number, None) is None and event.record is not None:  # else this is its end
            self._recent[number] = event.record
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]

    def _update(self, number: int, view: TransactionView | None, version: int) -> None:
        followed = self._followed.get(number)
        if followed is None or version <= followed.version:
            return
        before, followed.view, followed.version = followed.view, view, version
        if view is not None and not view.header.state.final:
            return
        if before is None or not before.header.state.final:  # else they were called already
            for listener in list(followed.listeners):
                if listener(number, view):
                    followed.listeners.pop(listener, None)
            if self._followed.get(number) is followed:  # no listener has released it
                self._unless_followed(number, followed)


def view_of(number: int, record: Record) -> TransactionView:
    """The header in a record. Raises CorruptionError."""
    return TransactionView(number, TransactionHeader.from_json(record.value), record.stat.version)


def check_open(number: int, view: TransactionView | None) -> None:
    """Raise TransactionNotFoundError, or TransactionConflictError when it has ended."""
    if view is None:
        raise TransactionNotFoundError(
            f"there is no transaction {id_text(number)}; it never existed, or its retention time is over"
        )
    if view.header.state.final:
        raise TransactionConflictError(f"the transaction {view.id} is {view.header.standing}")
