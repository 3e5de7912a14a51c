"""`Job`: a topic of Apache Pulsar is moved, with all its partitions."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from engine.client import AsyncClient
from engine.errors import InvalidArgumentError
from engine.migration.migrating import Migrated, Progress
from engine.migration.pulsar.connection import Service
from engine.migration.pulsar.copying import Copy, find_or_make
from engine.migration.pulsar.places import Mark
from engine.migration.pulsar.reading import Source, partitions_of
from engine.migration.verifying import Verified
from engine.model.names import TopicName
from engine.model.partitions import PARTITIONS, partition_names
from engine.pulsar.names import topic_of


class Job:
    """Arguments are those of migrate_from_pulsar_async()."""

    def __init__(
        self,
        url: str,
        token: str | None,
        tls: ssl.SSLContext | None,
        destination: AsyncClient,
        compression: str,
        verify: bool,
        on_progress: Progress | None,
    ) -> None:
        self._service = Service(url, token, tls)
        self._destination = destination
        self._compression = compression
        self._verify = verify
        if on_progress is not None and not callable(on_progress):
            raise InvalidArgumentError(f"on_progress must be callable, got {type(on_progress).__name__}")
        self._on_progress = on_progress

    async def run(self, topic: str, to: str | None) -> list[Migrated]:
        """One after the other."""
        source = topic_of(topic)
        target = source if to is None else TopicName.parse(to)
        target.check_new()
        if not target.classic:
            raise InvalidArgumentError(f"a copy of a topic of Apache Pulsar must be persistent://…, got {target}")
        count = await partitions_of(self._service, str(source))
        if not count:
            return [await self._one(str(source), str(target), partition=False)]
        whole = Mark(str(source), self._service.url)
        await find_or_make(self._destination, str(target), whole, {PARTITIONS: str(count)})
        pairs = zip(partition_names(source, range(count)), partition_names(target, range(count)), strict=True)
        return [await self._one(*pair, partition=True) for pair in pairs]

    async def _one(self, topic: str, target: str, *, partition: bool) -> Migrated:
        """`partition`: whether it may be missing, as one that was never used is."""
        source = Source(self._service, topic, optional=partition)
        end = await source.last()
        copy = Copy(source, self._service.url, self._destination, target, self._compression)
        sent = await copy.run(end, self._progress("copy"))
        verified: Verified | None = None
        if self._verify:
            verified = await copy.verify(end, self._progress("verify"))
        await copy.complete()
        return Migrated(target, sent, (), (), verified)

    def _progress(self, step: str) -> Callable[[int], None]:
        done = 0

        def progressed(count: int) -> None:
            nonlocal done
            done += count
            if self._on_progress is not None and count:
                self._on_progress(step, done, 0)

        return progressed
