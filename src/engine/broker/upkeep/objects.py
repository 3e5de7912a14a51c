"""`ObjectUpkeep`: rolled files of open segments become objects, and what is not needed of the store is deleted.

    every UPKEEP_S     files end by age; rolled ones are uploaded, small ones together, and named (R13, R14, R18);
                       what silent segments keep of the log moves on (R19), also of closed ones (left_logs.py); the
                       own log is trimmed (R15); what was given up is deleted after its grace
    every SETTLE_S     the session's record says which shared objects are named no more (R18)
    every SWEEP_S      each broker ends sessions that it had before; one, under a lease, those of brokers that are
                       gone, and sweeps what sessions that have ended have left behind (R16)

A segment that fails is logged, and the next round tries it again; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from engine.broker.hosting.object_logs import ObjectLogs
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import INDEX_LOGS, Owner
from engine.broker.upkeep.left_logs import LeftLogs, SpecOf
from engine.clock import Clock
from engine.control.base.brokers import Brokers
from engine.control.base.topic_records import topic_of_key
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    EngineError,
    FencedError,
    NotFoundError,
    NotOwnerError,
    StorageError,
)
from engine.metadata import keys, unsure
from engine.metadata.store import ABSENT, ConflictError, IndexedRecords, MetadataStore, OutcomeUnknownError, Record
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.sweep import Sweep, Swept
from engine.storage.objects.trim import needed
from engine.storage.objects.wal import ObjectWal
from engine.storage.sharing import share

if TYPE_CHECKING:
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)

UPKEEP_S = 10.0
SETTLE_S = 600.0
SWEEP_S = 3600.0
UPLOADS_AT_ONCE = 4
PATIENCE_S = 20.0  # so long the uploads of a round wait for a quiet log: nothing else is uploaded meanwhile
BEHIND_MAX = 6_000  # objects of the own log that a silent segment keeps until it moves on: those of ten busy minutes
CLOSED_BEHIND_MAX = 36_000  # likewise, of one that is closed, until it is opened for that
OPENED_AT_ONCE = 8  # in a round


def behind(found: IndexedRecords, objects: Sequence[SegmentObjects], session: str, start: int, url: str) -> list[str]:
    """The keys of the records that need objects of the session's log below `start`, the lowest first, but for segments
    that other brokers than `url` have, or are to have.
    """
    starts = [each.starts().get(session, start) for each in objects]
    lagging = sorted((at, record.key, record) for at, (_, record) in zip(starts, found, strict=True) if at < start)
    owners = [(key, Owner.of(record)) for _, key, record in lagging]
    return [key for key, owner in owners if {owner.url, owner.heir} <= {None, url}]


class ObjectUpkeep:
    """Of one broker. Loop thread only. `uploaded`: files since the start."""

    def __init__(
        self,
        logs: ObjectLogs,
        segments: OpenSegments,
        metadata: MetadataStore,
        brokers: Brokers,
        leads: Callable[[], bool],
        clock: Clock,
        file_age_s: float,
        spec: SpecOf,
        left: LeftLogs,
    ) -> None:
        """`leads`: whether it is this broker that sweeps. `file_age_s`: a file with an older message ends. `spec`: of
        a segment, by its topic and id.
        """
        self.uploaded = 0
        self._logs = logs
        self._segments = segments
        self._metadata = metadata
        self._brokers = brokers
        self._leads = leads
        self._clock = clock
        self._file_age_ms = int(file_age_s * 1000)
        self._interval = min(UPKEEP_S, file_age_s / 4)
        self._spec = spec
        self._left = left
        self._uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._waiting = 0  # segments, for their turn
        self._patient_until = 0.0  # of the loop's clock
        self._gone: set[str] = set()  # sessions of brokers that were gone at the last sweep
        self._unshared: frozenset[str] = frozenset()  # shared objects that no record named at the last sweep
        self._settled = "", 0  # session, and what its record says

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(
            self._repeat(self._upload_round, self._interval),
            self._repeat(self._trim_round, self._interval),
            self._repeat(self._left.round, self._interval),
            self._repeat(self.settle, SETTLE_S),
            self._repeat(self._sweep_by_turn, SWEEP_S),
        )

    async def _repeat(self, step: Callable[[], Any], interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await step()
            except (AlreadyClosedError, NotOwnerError) as e:
                log.debug("upkeep of objects: %s", e)
            except EngineError as e:
                log.warning("upkeep of objects: %s", e)
            except Exception:
                log.exception("a round of the upkeep of objects failed")

    async def round(self) -> None:
        """One round. Raises what the stores raise."""
        await self._upload_round()
        await self._trim_round()

    async def _upload_round(self) -> None:
        self._patient_until = asyncio.get_running_loop().time() + PATIENCE_S
        open_ones = [hosted.segment for hosted in self._segments if hosted.segment.consolidation is not None]
        await self._share(open_ones)
        await asyncio.gather(*map(self._consolidate_safely, open_ones))

    async def _share(self, segments: list[Segment]) -> None:
        """R18. What fails is uploaded alone, as all other files."""
        for segment in segments:
            try:
                await segment.end_aged(self._file_age_ms)
            except EngineError as e:
                log.debug("%s: %s", segment.name, e)
        try:
            self.uploaded += await share(segments, self._logs.names_of(self._logs.wal.session))
        except NotOwnerError as e:
            log.debug("small files were not uploaded together: %s", e)
        except EngineError as e:
            log.warning("small files were not uploaded together: %s", e)

    async def settle(self) -> None:
        """R18: say which shared objects no further record will name. Raises NotOwnerError; as the store does."""
        wal = self._logs.wal
        now = wal.session, self._logs.names_of(wal.session).settled
        if now[1] and now != self._settled:
            await wal.settle(now[1])
            self._settled = now

    async def _trim_round(self) -> None:
        wal = self._logs.wal
        try:
            await self.trim(wal)
        except FencedError as e:
            wal.writer.end(e)  # R8: nothing more would be acknowledged
            raise NotOwnerError(str(e)) from e
        await self._logs.garbage.delete_due()

    async def _consolidate_safely(self, segment: Segment) -> None:
        try:
            self._waiting += 1
            try:
                await self._uploads.acquire()
            finally:
                self._waiting -= 1
            try:
                await self.consolidate(segment)
            finally:
                self._uploads.release()
        except (AlreadyClosedError, NotOwnerError) as e:
            log.debug("%s: %s", segment.name, e)
        except CorruptionError as e:
            log.error("%s: a file was not uploaded: %s", segment.name, e)
        except EngineError as e:
            log.warning("%s: its files were not uploaded, retrying: %s", segment.name, e)
        except Exception:
            log.exception("%s: its files were not uploaded, retrying", segment.name)

    async def consolidate(self, segment: Segment) -> None:
        """Upload and name what has rolled of one segment. Raises as Consolidation.run() does."""
        assert segment.consolidation is not None
        await segment.end_aged(self._file_age_ms)
        self.uploaded += await segment.consolidation.run(segment, self._is_in_a_hurry)
        if segment.consolidation.is_behind(self._logs.wal.unneeded, BEHIND_MAX):
            await segment.consolidation.move_on()

    def _is_in_a_hurry(self) -> bool:
        return self._waiting > 0 or asyncio.get_running_loop().time() > self._patient_until

    async def trim(self, wal: ObjectWal) -> None:
        """R15. The order counts: a reference that the records do not have yet begins at or above what is unneeded."""
        acknowledged = wal.unneeded
        found = await self._metadata.newest.list_index(INDEX_LOGS, wal.session, wal.session + "\0")
        objects = [msgspec.json.decode(record.value, type=SegmentObjects) for _, record in found]
        await wal.trim(wal.session, needed(objects, wal.session, acknowledged))
        await wal.delete_trimmed()
        names = [*(hosted.name for hosted in self._segments), *self._segments.damaged]
        left_out = set(map(keys.segment, names))
        late = behind(found, objects, wal.session, acknowledged - CLOSED_BEHIND_MAX, self._brokers.url)
        for key in [key for key in late if key not in left_out][:OPENED_AT_ONCE]:
            await self._open(key)

    async def _open(self, key: str) -> None:
        """R19: a closed segment keeps much of the log. It is closed again when it is idle, and keeps less then."""
        topic = topic_of_key(key)
        try:
            spec = await self._spec(topic, int(key.rpartition("/")[2]))
            await self._segments.open(spec, create=False)
        except (NotFoundError, NotOwnerError):
            return  # deleted meanwhile; or its owner is another broker, which moves it on
        except EngineError as e:
            log.warning("a segment of %s could not be opened, so that its log is kept: %s", topic, e)

    # -- the sweep -------------------------------------------------------------------------------------------------

    async def _sweep_by_turn(self) -> None:
        if not self._leads():
            await self._end_sessions(self._sweep_of(), others=False)
            return
        swept = await self.sweep(dry_run=False)
        if swept.names:
            count = swept.log_objects + swept.files
            log.info("%d objects of ended sessions were deleted, %d bytes", count, swept.size)

    async def sweep(self, *, dry_run: bool) -> Swept:
        """One sweep now. Raises StorageError: another broker sweeps; CorruptionError; and what the stores raise."""
        async with self._lease():
            sweep = self._sweep_of(dry_run=dry_run)
            if not dry_run:
                await self._end_sessions(sweep, others=True)
            swept = await sweep.run(dry_run=dry_run)
            if not dry_run:
                self._unshared = sweep.unshared
            return swept

    def _sweep_of(self, *, dry_run: bool = True) -> Sweep:
        def refers(record: Record, objects: SegmentObjects) -> None:
            if not dry_run:
                self._left.note(record, objects, sweep.found)

        if not dry_run:
            self._left.sweep_begins()
        now_ms, unshared = self._clock.time_ms, self._unshared
        sweep = Sweep(self._logs.store, self._metadata, self._logs.cluster, now_ms, unshared=unshared, refers=refers)
        return sweep

    async def _end_sessions(self, sweep: Sweep, *, others: bool) -> None:
        """Fence the sessions that this broker had before, and with `others` those of brokers that are gone.

        A takeover fences what has open references (R3); nothing else would ever end the others. A fence does no harm
        to a session that lives (R8). A broker begins its session before it registers: so others' end when two sweeps
        in a row have found their brokers gone.
        """
        living = {name: record for name, record in (await sweep.sessions()).items() if record.fenced is None}
        found = await self._metadata.newest.list_keys(keys.BROKERS, keys.prefix_end(keys.BROKERS))
        live = {keys.decode(key.removeprefix(keys.BROKERS)) for key in found}
        former = {name for name, record in living.items() if record.broker == self._brokers.url}
        gone = {name for name, record in living.items() if record.broker not in live} - former
        over = (former - {self._logs.newest}) | (gone & self._gone if others else set())
        self._gone = gone
        for session in sorted(over):
            await self._logs.wal.fence(session)

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[None]:
        """A record that ends with this broker. Two sweeps at once would do no harm, and cost twice."""
        session = await self._brokers.session()
        try:
            held = await self._metadata.put(keys.SWEEPER, self._brokers.url.encode(), ABSENT, session=session)
        except (ConflictError, OutcomeUnknownError):
            raise StorageError("another sweep of the object store is under way; try again") from None
        try:
            yield
        finally:
            try:
                await unsure.delete(self._metadata, keys.SWEEPER, held.version)
            except (ConflictError, OutcomeUnknownError, EngineError) as e:
                log.warning("the lease of the sweep ends with this broker's session: %s", e)
