"""`TransactionHeaders`: how the transactions stand that this broker takes part in, kept fresh by one watch.

Who authorises by a header follows it: from then on it costs nothing to look, and its end is heard of. What is followed
is kept, and a transaction is followed no longer than it leaves something undecided here; and of those that nobody
follows yet, a few that were heard of last, since whoever begins one uses it soon. So memory grows with the open
transactions that concern this broker, and with nothing else; no list of headers is ever read.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.aio.tasks import Supervisor
from engine.control.transactions.headers import TransactionView
from engine.errors import AlreadyClosedError, TransactionConflictError, TransactionNotFoundError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, MetadataStore, Record, Watch
from engine.model.transactions import TransactionHeader, TransactionState, id_text, parse_id

RECENT_MAX = 1024  # heard of last, and not followed

_PREFIX = keys.transaction("")

# Called with a transaction's number and its final header, as it was decided; None: there is no such header any more.
Listener = Callable[[int, TransactionView | None], None]


class _Followed:
    """One transaction. `version`: of the header, or of its deletion, that is known here."""

    __slots__ = ("listeners", "version", "view")

    def __init__(self, view: TransactionView | None) -> None:
        self.listeners: dict[Listener, None] = {}
        self.view = view
        self.version = -1 if view is None else view.version

    @property
    def is_open(self) -> bool:
        """As far as is known."""
        return self.view is not None and self.view.header.state is TransactionState.OPEN


class TransactionHeaders:
    """Loop thread only. A listener is called once with its transaction's end, soon after that was decided.

    A header that is known here may be older than the one in the store. It is good enough to begin something by; what
    that came to is decided by the versions of the records (model.transactions.operation_counts).
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._followed: dict[int, _Followed] = {}
        self._recent: dict[int, Record] = {}  # as they stand, as far as was heard; of those that nobody follows
        self._version: int | None = None  # of the store, as far as it was heard; None: nothing is watched yet
        self._tasks = Supervisor("headers of transactions")
        self._closed = False

    def __len__(self) -> int:
        return len(self._followed)

    async def close(self) -> None:
        """Tell nobody any more. Idempotent."""
        self._closed = True
        await self._tasks.close()
        self._followed.clear()

    # -- following ---------------------------------------------------------------------------------------------------

    def follow(self, number: int, listener: Listener) -> None:
        """Call it when the transaction ends, until release(). Who begins to follow has to read() it once."""
        self._of(number).listeners[listener] = None

    def follow_open(self, number: int, listener: Listener) -> bool:
        """The same, if it is known here, and open as far as is known; whether it is. No need to read() it then."""
        followed = self._followed.get(number)
        if followed is None:
            if number not in self._recent:
                return False
            followed = self._of(number)
        if not followed.is_open:
            self._unless_followed(number, followed)
            return False
        followed.listeners[listener] = None
        return True

    def known(self, number: int) -> TransactionView | None:
        """How one stands that is followed, as far as was heard."""
        followed = self._followed.get(number)
        return None if followed is None else followed.view

    def _of(self, number: int) -> _Followed:
        followed = self._followed.get(number)
        if followed is not None:
            return followed
        if self._closed:
            raise AlreadyClosedError("the broker is closing")
        if self._version is None:
            self._version = self._metadata.version  # whoever reads a header from now on hears of all that is later
            known = lambda: [keys.transaction(id_text(number)) for number in self._followed]  # noqa: E731
            watching = follow(self._metadata, self._watch, self._heard, known, what="the headers of transactions")
            self._tasks.spawn(watching, "headers of transactions")
        record = self._recent.pop(number, None)
        followed = self._followed[number] = _Followed(None if record is None else view_of(number, record))
        return followed

    def release(self, number: int, listener: Listener) -> None:
        """It is called no more. Idempotent."""
        followed = self._followed.get(number)
        if followed is None:
            return
        followed.listeners.pop(listener, None)
        self._unless_followed(number, followed)

    def _unless_followed(self, number: int, followed: _Followed) -> None:
        if not followed.listeners:
            del self._followed[number]

    # -- looking -----------------------------------------------------------------------------------------------------

    async def authorise(self, number: int, listener: Listener) -> None:
        """Follow a transaction that is open. Raises TransactionNotFoundError; TransactionConflictError: it has ended.

        Who followed it before goes on doing so, also when this raises.
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
        """As it stands in the store now; None when there is none. Those who follow it are told if it has ended."""
        version = self._metadata.version
        record = await self._metadata.get(keys.transaction(id_text(number)))
        followed = self._followed.get(number)
        if followed is not None and record is not None and followed.version == record.stat.version:
            return followed.view
        view = None if record is None else view_of(number, record)
        self._update(number, view, version if view is None else view.version)
        return view

    # -- hearing -----------------------------------------------------------------------------------------------------

    def _watch(self) -> Watch:
        """From where the last one broke off, so that neither the first nor a later one begins with all there is."""
        return self._metadata.watch(_PREFIX, self._version)

    def _heard(self, event: Event) -> None:
        self._version = max(event.version, self._version or 0)
        if event.kind is EventKind.SNAPSHOT_END:
            return
        number = parse_id(event.key[len(_PREFIX) :])
        if number in self._followed:
            view = None if event.record is None else view_of(number, event.record)
            self._update(number, view, event.version)
        elif self._recent.pop(number, None) is None and event.record is not None:  # else it has ended
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
        if before is None or not before.header.state.final:  # else they know
            for listener in list(followed.listeners):
                listener(number, view)


def view_of(number: int, record: Record) -> TransactionView:
    """A header's record, as it was read. Raises CorruptionError."""
    return TransactionView(number, TransactionHeader.from_json(record.value), record.stat.version)


def check_open(number: int, view: TransactionView | None) -> None:
    """Raise TransactionNotFoundError, or TransactionConflictError when it has ended."""
    if view is None:
        raise TransactionNotFoundError(
            f"there is no transaction {id_text(number)}; it never was, or it ended longer ago than it is kept"
        )
    if view.header.state.final:
        raise TransactionConflictError(f"the transaction {view.id} is {view.header.standing}: nothing is added to it")
