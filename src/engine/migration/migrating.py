"""`migrate` and `migrate_async`: the public forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.client import AsyncClient
from engine.client.base.options import Keys
from engine.errors import InvalidArgumentError
from engine.migration import subscriptions as standing
from engine.migration.copying import Copy, Extent, Terms, read_extent
from engine.migration.side import Side
from engine.migration.topics import complete, prepare, read_facts
from engine.migration.verifying import Verified, verify
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.sync import Client

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration has done. `topic`: the copy. `sent`: messages of this run, those included that were there from a
    run that was cut short. `subscriptions`: those that were copied. `open_transactions`: those before which the copy
    ends: once they have ended, a further run copies the rest. `verified`: None when it was not asked for.
    """

    topic: str
    sent: int
    subscriptions: tuple[str, ...]
    open_transactions: tuple[str, ...]
    verified: Verified | None


@dataclass(frozen=True, slots=True)
class _Job:
    topic: str
    target: str
    verify: bool
    subscriptions: bool
    terms: Terms
    copy_keys: Keys | None  # that the copy is read with
    on_progress: Progress | None

    def progress(self, step: str, total: int) -> Callable[[int], None]:
        """What to call with the messages that a step has done since."""
        done = 0

        def progressed(count: int) -> None:
            nonlocal done
            done += count
            if self.on_progress is not None:
                self.on_progress(step, done, total)

        return progressed


async def migrate_async(
    source: AsyncClient,
    destination: AsyncClient,
    topic: str,
    *,
    to: str | None = None,
    verify: bool = False,
    subscriptions: bool = False,
    compression: str = "none",
    decryption_keys: Keys | None = None,
    encryption_keys: Keys | None = None,
    copy_decryption_keys: Keys | None = None,
    on_progress: Progress | None = None,
) -> Migrated:
    """Copy a topic from one client's service to another's, as far as it goes when this is called.

    Keys, values, properties, event times, delivery times and the order of each key are kept, and of the topic its
    number of active segments and entry buckets, key hash, properties, policies, schemas and, where the destination has
    it, durability. Publish times, message ids and producers are new. Messages of transactions come once these are
    committed. A further run, also after one that was killed at any moment, sends what is missing and stores nothing
    twice; two at a time are refused.

    `to`: the name of the copy; None: the same. `verify`: read both, and compare counts, contents and the order of each
    key. `subscriptions`: create them as well, and acknowledge at the copy what they have acknowledged; let their
    consumers stop before. `compression`: of the copy. `decryption_keys`, `encryption_keys`: for messages that are
    encrypted, to read them and to encrypt the copy; `copy_decryption_keys`: to read the copy, where `verify` or
    `subscriptions` does. `on_progress`: called with a step ("copy", "verify"), the messages done and about how many
    there are.

    Raises NotFoundError; AlreadyExistsError: the destination has a topic of that name that is no copy of this one;
    ProducerBusyError: another migration of it runs; UnsupportedError: a subscription has acknowledged messages behind
    one that it has not; DecryptionError; CorruptionError: the copy differs from the source; and what producers and
    readers raise. After each of these it may be called again.
    """
    job = _job(
        topic, to, verify, subscriptions, Terms(compression, decryption_keys, encryption_keys), copy_decryption_keys,
        on_progress,
    )  # fmt: skip
    return await _migrate(Side(source), Side(destination), job)


def migrate(
    source: Client,
    destination: Client,
    topic: str,
    *,
    to: str | None = None,
    verify: bool = False,
    subscriptions: bool = False,
    compression: str = "none",
    decryption_keys: Keys | None = None,
    encryption_keys: Keys | None = None,
    copy_decryption_keys: Keys | None = None,
    on_progress: Progress | None = None,
) -> Migrated:
    """migrate_async() for blocking clients and engines. `on_progress` is called on a client's own thread."""
    job = _job(
        topic, to, verify, subscriptions, Terms(compression, decryption_keys, encryption_keys), copy_decryption_keys,
        on_progress,
    )  # fmt: skip
    here, there = (Side(client._client, client._portal.loop) for client in (source, destination))
    return destination._portal.run(_migrate(here, there, job))


def _job(
    topic: str,
    to: str | None,
    verify: bool,
    subscriptions: bool,
    terms: Terms,
    copy_keys: Keys | None,
    on_progress: Progress | None,
) -> _Job:
    source = TopicName.parse(topic)
    target = source if to is None else TopicName.parse(to)
    target.check_new()
    if on_progress is not None and not callable(on_progress):
        raise InvalidArgumentError(f"on_progress must be callable, got {type(on_progress).__name__}")
    return _Job(str(source), str(target), verify, subscriptions, terms, copy_keys, on_progress)


async def _migrate(source: Side, destination: Side, job: _Job) -> Migrated:
    facts = await source.run(read_facts(source.client, job.topic))
    standings = await source.run(standing.read_standings(source.client, job.topic)) if job.subscriptions else []
    marker = await destination.run(prepare(destination.client, job.target, facts))
    await destination.run(standing.create(destination.client, job.target, standings))
    extent = await source.run(read_extent(source.client, job.topic))
    sides = (source, destination)
    progressed = job.progress("copy", extent.messages)
    sent = await Copy(sides, facts, job.target, job.terms, progressed).run(extent, marker)
    keys = (job.terms.decryption_keys, job.copy_keys)
    if standings:
        await standing.acknowledge(destination, job.target, standings, facts.marker, keys[1])
    verified = None
    if job.verify:
        progressed = job.progress("verify", 2 * extent.messages)
        verified = await verify(sides, (job.topic, job.target), extent, keys, facts.marker, progressed)
    await destination.run(complete(destination.client, job.target, facts))
    held = await source.run(_open_transactions(source.client, job.topic, extent))
    return Migrated(job.target, sent, tuple(s.name for s in standings), held, verified)


async def _open_transactions(client: AsyncClient, topic: str, extent: Extent) -> tuple[str, ...]:
    """Those that hold the ends of segments back."""
    numbers: Any = await client.admin.get_stats(topic)
    segments = {int(i): s for i, s in numbers["segments"].items()}
    held = (s["heldBackBy"] for i, s in segments.items() if i in extent.ranges)
    return tuple(sorted({ident for ident in held if ident is not None}))
