"""`OpenSegments`: which of this broker's segments are open, and how they are opened, closed and forgotten."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.aio.semaphore import AsyncSemaphore
from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation, subscriptions_of
from engine.broker.hosting.inventory import Inventory
from engine.broker.hosting.ownership import Owned, Ownership
from engine.broker.hosting.remembered import Remembered, check_identity
from engine.broker.hosting.transactions import SegmentTransactions
from engine.control.base.ports import SegmentSpec
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    EngineError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    UnsupportedError,
)
from engine.metadata import keys, unsure
from engine.metadata.identity import load_identity
from engine.metadata.store import MetadataStore
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.storage.disk.config import OBJECT

if TYPE_CHECKING:
    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.broker.segment.environment import Environment
    from engine.broker.segment.hosted import HostedSegment
    from engine.storage.file.stored import Stored
    from engine.storage.segment import Segment
    from engine.storage.store import SegmentStore


log = logging.getLogger(__name__)

Bequeath = Callable[[], Coroutine[Any, Any, None]]

CLOSE_S_MAX = 10.0  # for cursors to be written when the broker closes


class _Standing(enum.Enum):
    """The state of a stored segment according to its topic's record."""

    NAMED = "named"
    NOWHERE = "nowhere"
    REPLACED = "replaced"  # its id is that of another segment: the topic was deleted and made anew


async def _admit(tenant: str) -> None:
    """Any tenant."""


class OpenSegments:
    """Segments by name; opened when first needed, over the local storage.

    Opening a segment acquires its ownership: a new, larger term, written to the metadata store by compare-and-set and
    stamped into every entry appended under it (L1).
    """

    def __init__(
        self,
        store: SegmentStore,
        metadata: MetadataStore,
        ownership: Ownership,
        *,
        loads: AsyncSemaphore,
        environment: Environment,
        objects: ObjectLogs | None = None,
    ) -> None:
        """`loads`: how many segments may be opened at once. `environment`: handed to the segments. `objects`: where a
        broker keeps segments in an object store.
        """
        self._objects = objects
        if objects is not None:
            objects.lost = self._objects_lost
        self._store = store
        self._cursors = store.cursors
        self._metadata = metadata
        self._ownership = ownership
        transactions = self.transactions = SegmentTransactions(metadata)
        self.headers, self.operations = transactions.headers, transactions.operations
        self._remembered = Remembered(metadata, store.cursors)
        self.participation = Participation(self.headers, self.operations, Supervisor("acknowledgements"))
        self._hosted: dict[SegmentName, HostedSegment] = {}
        self._opening: dict[SegmentName, asyncio.Task[HostedSegment]] = {}
        self._leaving: dict[SegmentName, asyncio.Task[Any]] = {}  # being unloaded, deleted or swept
        self.undeleted: dict[SegmentName, None] = {}  # deletion begun, and perhaps failed
        self.damaged: dict[SegmentName, str] = {}  # found damaged when last opened or measured
        self.inventory = Inventory()
        # Called when a segment was opened, closed or deleted; True: what the inventory has of it is to be taken anew.
        self.stirred: Callable[[SegmentName, bool], None] = lambda name, stale: None
        # Awaited with a tenant before a segment of it is opened.
        self.admit: Callable[[str], Coroutine[Any, Any, object]] = _admit
        self._closed = False
        self._loads = loads
        self._environment = environment

    def __iter__(self) -> Iterator[HostedSegment]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    def tenants(self) -> set[str]:
        """Those of its segments, open or not."""
        names = *self._hosted, *self._opening, *self._leaving
        return {name.topic.tenant for name in names} | self.inventory.tenants()

    # -- opening ---------------------------------------------------------------------------------------------------

    def get(self, name: SegmentName) -> HostedSegment | None:
        """The segment, if it is open and owned by this broker."""
        hosted = self._hosted.get(name)
        if hosted is None:
            return None
        lease = hosted.segment.lease
        if lease is not None and not lease.held:  # the session may have been renewed after it seemed lost
            self._lose(hosted)
            return None
        hosted.idle_since = None
        return hosted

    def peek(self, name: SegmentName) -> HostedSegment | None:
        """The segment if it is open, even if its ownership was lost."""
        return self._hosted.get(name)

    async def open(self, spec: SegmentSpec, *, create: bool) -> HostedSegment:
        """The open segment. `create` makes a missing store: for active segments only (semantics 28).

        Raises NotFoundError, CorruptionError, StorageError, AlreadyClosedError, MemoryLimitError.
        """
        while (hosted := self.get(spec.name)) is None:
            if self._closed:
                raise AlreadyClosedError("the broker is closing")
            task = self._opening.get(spec.name)
            mine = task is None
            if task is None:
                task = self._opening[spec.name] = asyncio.create_task(self._open(spec, create))
                task.add_done_callback(lambda done: self._opened(spec.name, done))
            try:
                return await shielded(task)
            except NotFoundError:
                if mine or not create:
                    raise  # otherwise the failed attempt did not create: try again, creating
                await asyncio.sleep(0)  # it may have ended a moment ago: `_opened` is called, and forgets it
        return hosted

    async def open_existing(self, spec: SegmentSpec) -> HostedSegment | None:
        """The segment, or None when it has no store."""
        try:
            return await self.open(spec, create=False)
        except NotFoundError:
            return None

    async def _open(self, spec: SegmentSpec, create: bool) -> HostedSegment:
        permit = await self._loads.acquire(1)
        try:
            await self.admit(spec.name.topic.tenant)
            return await self._load(spec, create)
        finally:
            self._loads.release(permit)

    async def _load(self, spec: SegmentSpec, create: bool) -> HostedSegment:
        await self._left(spec.name)
        await self._ownership.brokers.session()  # without one nothing can be claimed: say so before reading anything
        self.check_durability(spec)
        if not await self._is_there(spec):
            await self._remembered.check_there(spec.name, self._store.directory(spec.name))
            if not create:
                raise NotFoundError(f"{spec.name} has no store")
        # What is opened for a moment, as retention does, is not worth another broker's time.
        siblings = partial(self._siblings, spec.name) if create else None
        on_objects = spec.durability == OBJECT
        try:
            owned = await self._ownership.claim(spec.name, siblings, leased=on_objects)
        except NotOwnerError:
            self.inventory.drop(spec.name)  # the owner answers for it
            raise
        if create and owned.lease is not None:
            await self._check_wanted(spec.name)
        enter, term = self._store.create if create else self._store.open, owned.term
        known = await self._remembered.reach(spec.name)
        backing = None
        if on_objects and self._objects is not None:
            backing = self._objects.backing(self._ownership, spec.name, owned)
        segment = await enter(
            spec.name, durability=spec.durability, bucket_ends=spec.bucket_ends, term=term, lease=owned.lease,
            known=known, backing=backing,
        )  # fmt: skip
        if backing is not None and self._objects is not None:
            self._objects.attach(segment, backing)
        try:
            if spec.sealed and not segment.sealed:
                raise CorruptionError(
                    f"{segment.directory}: the log of {spec.name} must be sealed, as its layout has it: its end is "
                    f"missing behind offset {segment.messages_end}, or its files are an older copy"
                )
            await self._check_identity(segment)
            await self._remembered.stored(spec.name, owned.lease)
        except BaseException:
            await self._store.abandon(spec.name)
            raise
        if segment.sealed and not spec.sealed:
            await segment.seal(term)  # after a crash, the seal that was read may not be durable yet
        if owned.lease is not None and not owned.lease.held:
            await self._store.abandon(spec.name)
            owned.lease.check()
        from engine.broker.segment.hosted import HostedSegment  # with the first segment

        make_buffer = self.transactions.make_buffer
        hosted = HostedSegment(spec, segment, term, self._environment, make_buffer, self._served_since(owned))
        await self.transactions.recover(hosted)
        return hosted

    def check_durability(self, spec: SegmentSpec) -> None:
        """Raise UnsupportedError where this broker cannot keep the segment."""
        if spec.durability == OBJECT and self._objects is None:
            raise UnsupportedError(
                f"{spec.name} has durability 'object', and this broker has no object store: start it with --objects URL"
            )

    async def _is_there(self, spec: SegmentSpec) -> bool:
        """Whether the segment has a store."""
        if spec.durability == OBJECT:
            return bool((await self._ownership.read(spec.name)).objects)
        return await self._store.exists(spec.name)

    async def _check_identity(self, segment: Segment) -> None:
        """Raise CorruptionError when its files were written under later metadata, or under another store's."""
        check_identity(segment.identity, await load_identity(self._metadata), segment.directory)

    async def _siblings(self, name: SegmentName) -> list[SegmentName]:
        """The active segments of its topic; none while that changes its shape, or is unknown."""
        layout = await self._layout(name.topic)
        if layout is None or layout.change is not None:
            return []
        return [name.topic.segment(info.hash_range, info.segment_id) for info in layout.active]

    def _served_since(self, owned: Owned) -> float | None:
        """When clients of its last owner could first reattach; None: it had none."""
        if owned.lease is None:
            return 0.0  # the last owner was an earlier process of this broker
        return None if owned.released else asyncio.get_running_loop().time()

    async def _check_wanted(self, name: SegmentName) -> None:
        """Raise NotFoundError when another broker deleted the segment. Checked after the claim, so that a later
        deletion is routed here.
        """
        layout = await self._layout(name.topic)
        if layout is not None and not layout.deleting and (layout.change is not None or _names(layout, name)):
            return
        if layout is None or layout.deleting or name.segment_id not in layout.segments:
            await self._ownership.removed(name)
        raise NotFoundError(f"{name} was deleted")

    def _opened(self, name: SegmentName, task: asyncio.Task[HostedSegment]) -> None:
        del self._opening[name]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, CorruptionError):
            self.found_damaged(name, error)
        elif error is None:
            self.damaged.pop(name, None)
        if not task.cancelled() and error is None:
            self._hosted[name] = task.result()
            self.undeleted.pop(name, None)
            if self._is_over(name):
                self._lose(task.result())
        self.stirred(name, self.inventory.get(name) is None)

    def found_damaged(self, name: SegmentName, error: EngineError) -> None:
        """The segment cannot be served."""
        if self.damaged.get(name) != str(error):
            log.error("%s cannot be served: %s", name, error)
        self.damaged[name] = str(error)

    async def check_there(self, name: SegmentName) -> None:
        """The segment had no files: raise CorruptionError unless it never had any, has some by now, or was deleted.

        It is recorded as stored behind its first file. So files that are missing after the record was read are lost.
        """
        try:
            await self._remembered.check_there(name, self._store.directory(name))
        except CorruptionError:
            if not await self._store.exists(name):
                raise

    def session_lost(self) -> None:
        """Close everything without writing to files or cursors: other brokers may own the segments."""
        for hosted in self:
            self._lose(hosted)

    def _is_over(self, name: SegmentName) -> bool:
        """Whether it is on objects, in a session of this broker that has ended."""
        backing = None if self._objects is None else self._objects.of(name)
        return backing is not None and backing.over

    def _objects_lost(self) -> None:
        """R8: what is in the log of a session that has ended is taken over again, by whichever broker needs it."""
        for hosted in self:
            if self._is_over(hosted.name):
                self._lose(hosted)

    def _lose(self, hosted: HostedSegment) -> None:
        del self._hosted[hosted.name]
        self.inventory.drop(hosted.name)
        self.stirred(hosted.name, True)
        hosted.closed = True
        hosted.close(NotOwnerError(f"this broker lost {hosted.name}; look the topic up again"))
        self._begin_to_leave(hosted.name, partial(self._abandon, hosted))

    async def _abandon(self, hosted: HostedSegment) -> None:
        if hosted.transactions is not None:
            hosted.transactions.abandon()
        await self._store.abandon(hosted.name)
        for subscription in subscriptions_of(hosted).values():
            await subscription.end()

    # -- unloading -------------------------------------------------------------------------------------------------

    async def unload(self, hosted: HostedSegment) -> bool:
        """Close an unused segment; its next use opens it again. False: it is in use."""
        if hosted.in_use or self._hosted.get(hosted.name) is not hosted:
            return False
        hosted.closed = True
        del self._hosted[hosted.name]
        self.inventory.close(hosted)
        self.stirred(hosted.name, False)
        await self._leave(hosted.name, lambda: self._unload(hosted))
        return True

    async def _unload(self, hosted: HostedSegment) -> None:
        for subscription in subscriptions_of(hosted).values():
            await subscription.end()
        if hosted.transactions is not None:
            await hosted.transactions.close()
        await self._store.release(hosted.name)
        await self._ownership.release(hosted.name, hosted.term, await self._left_in_log(hosted.name))

    async def hand_over(self, hosted: HostedSegment, heir: str, bequeath: Bequeath) -> None:
        """Close a segment in order while clients use it, and leave it to the broker `heir`, whose turn it then is. Of
        this broker itself, its next use opens it again.

        What was appended is durable, and answered; later appends are refused, and clients look for the next owner.
        Acknowledgements are saved, then `bequeath` is awaited, then the heir may claim it. Runs to its end even if the
        caller is cancelled. Raises NotOwnerError: it is not open here, or is being sealed; what the metadata store
        raises: then its next use opens it, here or at `heir`.
        """
        if self._hosted.get(hosted.name) is not hosted or hosted.segment.sealing:
            raise NotOwnerError(f"{hosted.name} cannot be handed over now; look the topic up again")
        hosted.closed = True
        del self._hosted[hosted.name]
        self.inventory.drop(hosted.name)
        self.stirred(hosted.name, True)
        await self._leave(hosted.name, lambda: self._hand_over(hosted, heir, bequeath))

    async def _hand_over(self, hosted: HostedSegment, heir: str, bequeath: Bequeath) -> None:
        name = hosted.name
        moved = NotOwnerError(f"{name} moves to the broker {heir}; look the topic up again")
        hosted.segment.leave_to(heir)
        hosted.close_consumers(moved)
        saved = asyncio.gather(*(subscription.end() for subscription in subscriptions_of(hosted).values()))
        try:
            try:
                if hosted.transactions is not None:
                    await hosted.transactions.close()
            finally:
                await self._store.release(name)
            await saved
            await bequeath()
            left = await self._left_in_log(name)
            if heir == self._ownership.brokers.url:
                await self._ownership.release(name, hosted.term, left)
            else:
                await self._ownership.leave(name, hosted.term, heir, left)
        finally:
            await asyncio.sleep(0)  # receipts of the last appends are sent in the loop's next turn
            await asyncio.sleep(0)
            hosted.close_producers(moved)

    async def _left_in_log(self, name: SegmentName) -> tuple[str, int] | None:
        backing = None if self._objects is None else self._objects.of(name)
        return None if backing is None else await backing.left()

    async def _leave(self, name: SegmentName, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run `work` to its end while the segment cannot be opened."""
        return await shielded(self._begin_to_leave(name, work))

    def _begin_to_leave(self, name: SegmentName, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        task = self._leaving[name] = asyncio.create_task(work())

        def ended(task: asyncio.Task[Any]) -> None:
            if self._leaving.get(name) is task:
                del self._leaving[name]
                if self._objects is not None and name not in self._hosted:
                    self._objects.forget(name)
            if not task.cancelled():
                task.exception()  # retrieved: every waiter may be cancelled

        task.add_done_callback(ended)
        return task

    async def _left(self, name: SegmentName) -> None:
        """Wait while it is being unloaded, deleted or swept."""
        while (leaving := self._leaving.get(name)) is not None:
            await asyncio.wait([leaving])

    async def _settled(self, name: SegmentName) -> None:
        """Wait while it is being opened, unloaded, deleted or swept."""
        while (task := self._opening.get(name) or self._leaving.get(name)) is not None:
            await asyncio.wait([task])

    async def find_aging(self, topics: Iterable[TopicName]) -> list[Stored]:
        """The closed segments of these topics that retention may have work in, and this broker may open."""
        names = list(topics)
        found = await self._store.find_aging(names)
        if self._objects is not None:  # when their messages were published, only their files tell
            from engine.storage.file.stored import Stored

            here = {one.name for one in found}
            elsewhere = (record for topic in names for record in self.inventory.of(topic) if record.files)
            found += [Stored(record.name, 0, None) for record in elsewhere if record.name not in here]
        return [one for one in found if one.name not in self._hosted and await self.may_own(one.name)]

    def answers_for(self, topic: TopicName) -> bool:
        """Whether segments of it are this broker's, open or not; of several brokers: as far as they are measured."""
        return self._ownership.alone or bool(self.inventory.of(topic))

    # -- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, name: SegmentName, confirm: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Delete cursors, store and ownership record, in this order; no opening meanwhile. Raises StorageError.

        `confirm` raises when the deletion is no longer permitted. It runs once the segment is owned, so that a segment
        of a new topic of this name is not deleted instead.
        """
        await self._settled(name)
        hosted = self._hosted.pop(name, None)
        if hosted is not None:
            hosted.closed = True
            hosted.close(NotFoundError(f"{name} was deleted"))
        await self._leave(name, lambda: self._remove(name, hosted, confirm))

    async def _remove(
        self,
        name: SegmentName,
        hosted: HostedSegment | None = None,
        confirm: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.undeleted[name] = None
        lease = await self._ownership.claim_to_remove(name)
        if confirm is not None:
            await confirm()
        if hosted is not None and hosted.transactions is not None:
            hosted.transactions.abandon()
        for subscription in subscriptions_of(hosted).values() if hosted is not None else ():
            await subscription.end()
        await self._cursors.delete_all(name, lease)
        await self.transactions.forget(name, lease)
        if lease is not None:
            lease.check()
        await self._remembered.deleting(name)
        # Last, since a crash before would leave files without a record. Much time may pass between the check and the
        # deletion of files: those of a later owner stay.
        await self._store.delete(name, None if lease is None else lease.term)
        await unsure.delete(self._metadata, keys.load(name))
        await self._ownership.removed(name)
        self.undeleted.pop(name, None)
        self.damaged.pop(name, None)
        self.inventory.drop(name)
        self.stirred(name, False)

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        """The segments of a topic that have a store."""
        return await self._store.list(topic)

    async def check_gone(self, spec: SegmentSpec) -> None:
        """Raise StorageError when neither a sealed segment nor any other of its topic has a store."""
        if spec.durability != OBJECT and spec.sealed and not await self.stored(spec.name.topic):
            raise StorageError(
                f"{spec.name}: the data directory holds no segment of its topic; is the correct disk mounted?"
            )

    async def may_own(self, name: SegmentName) -> bool:
        """Whether this broker owns the segment, or may claim it."""
        return await self._ownership.may_own(name)

    async def urls(self, names: Sequence[SegmentName]) -> list[str]:
        """The broker that owns each of these segments of one topic, or that placement names."""
        return await self._ownership.urls(names)

    async def on_disk(self) -> Mapping[TopicName, Sequence[SegmentName]]:
        """The segments that have a directory, by topic."""
        return await self._store.everything()

    async def remove_orphan(self, name: SegmentName) -> bool:
        """Delete a store that no layout and no pending change names; False when one does, or it is in use.

        Raises StorageError when it holds messages and the metadata do not explain why no layout names it: then the
        metadata were lost, or are older than the store.

        It cannot be opened meanwhile, by any broker: a child that a reshape is about to create under this name, or
        the segment of a topic being created, is created after the deletion.
        """
        if name in self._hosted or name in self._opening or name in self._leaving or self._closed:
            return False
        if not await self.may_own(name):
            return False
        return bool(await self._leave(name, lambda: self._remove_orphan(name)))

    async def _remove_orphan(self, name: SegmentName) -> bool:
        last = await self._store.last_term(name)
        standing = await self._standing(name)
        if standing is _Standing.NOWHERE:
            await self._check_lost(name)
            await self._ownership.claim(name)
            if await self._standing(name) is not _Standing.NOWHERE:
                return False  # another broker created it meanwhile
            await self._remove(name)
        elif standing is _Standing.REPLACED:  # cursors and ownership are keyed by id: they are the new segment's
            await self._store.delete(name, last)  # a new owner would have a larger term
        self.undeleted.pop(name, None)
        return standing is not _Standing.NAMED

    async def _check_lost(self, name: SegmentName) -> None:
        if self._objects is not None:
            return  # what lies on this disk is a cache
        layout = await self._layout(name.topic)
        pruned_or_undone = layout is not None and name.segment_id < layout.next_segment_id
        if not pruned_or_undone and await self._store.has_messages(name):
            raise StorageError("it holds messages unknown to the metadata store: is it the correct metadata store?")

    async def _standing(self, name: SegmentName) -> _Standing:
        """By the topic's present record. While a change is pending, every segment counts as named."""
        layout = await self._layout(name.topic)
        if layout is None:
            return _Standing.NOWHERE
        if layout.change is not None or _names(layout, name):
            return _Standing.NAMED
        return _Standing.REPLACED if name.segment_id in layout.segments else _Standing.NOWHERE

    async def is_in_layout(self, name: SegmentName) -> bool:
        """Whether the topic's present layout has the segment, active or sealed."""
        layout = await self._layout(name.topic)
        return layout is not None and _names(layout, name)

    async def _layout(self, topic: TopicName) -> SegmentLayout | None:
        record = await self._metadata.newest.get(keys.topic(topic))
        return None if record is None else SegmentLayout.from_json(record.value)

    # -- closing ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Detach all clients and write everything out; cursors not stored within CLOSE_S_MAX are lost."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await asyncio.gather(*self._opening.values(), *self._leaving.values(), return_exceptions=True)
                await self._close_cursors()
                await self.transactions.finish(self)
        except TimeoutError:
            log.warning("the metadata store takes no cursors: messages acknowledged last may be redelivered")
        await self.participation.tasks.close()
        await self.transactions.close(self)
        await self._store.close()
        self._hosted.clear()

    async def _close_cursors(self) -> None:
        for hosted in self:
            hosted.close_consumers(NotOwnerError(f"the broker of {hosted.name} is closing"))
        for hosted in self:
            for subscription in subscriptions_of(hosted).values():
                await subscription.end()


def _names(layout: SegmentLayout, name: SegmentName) -> bool:
    info = layout.segments.get(name.segment_id)
    return info is not None and info.hash_range == name.hash_range
