"""`migrate_from_pulsar` and `migrate_from_pulsar_async`: the public forms. What does it needs `engine[pulsar]`."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from engine.client import AsyncClient
from engine.errors import UnsupportedError
from engine.migration.migrating import Migrated, Progress

if TYPE_CHECKING:
    from engine.sync import Client


async def migrate_from_pulsar_async(
    url: str,
    destination: AsyncClient,
    topic: str,
    *,
    to: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    verify: bool = False,
    compression: str = "none",
    on_progress: Progress | None = None,
) -> list[Migrated]:
    """Copy a topic of Apache Pulsar, or its partitions, as far as they go when this is called; what was done for each.

    Keys, values, properties, event times, delivery times, partitions, schemas and the order of all messages of a
    partition are kept. Publish times, ids, producers and sequence ids are new. A further run, also after one that was
    killed at any moment, sends what is missing and stores nothing twice; two at a time are refused.

    `url`: pulsar://host:port or pulsar+ssl://host:port, the same in each run. `to`: the name of the copy,
    persistent://…; None: the same. `token`, `tls`: for the source. `verify`: read both, and compare each message.
    `compression`: of the copy. `on_progress`: called with a step ("copy", "verify"), the messages done, and 0, as their
    number is not known.

    Raises NotFoundError; AlreadyExistsError: the destination has a topic of that name that is no copy of this one;
    ProducerBusyError: another migration of it runs; ConnectError, AuthenticationError, AuthorizationError and
    TimeoutError: the source; UnsupportedError, MessageTooLargeError: a message or schema that cannot be stored here,
    with its place; CorruptionError: the copy differs from the source; and what producers and readers raise. After each
    of these it may be called again.
    """
    try:
        from engine.migration.pulsar.migrating import Job
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] != "google":
            raise
        raise UnsupportedError("to read from Apache Pulsar, engine[pulsar] must be installed") from e
    job = Job(url, token, tls, destination, compression, verify, on_progress)
    return await job.run(topic, to)


def migrate_from_pulsar(
    url: str,
    destination: Client,
    topic: str,
    *,
    to: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    verify: bool = False,
    compression: str = "none",
    on_progress: Progress | None = None,
) -> list[Migrated]:
    """migrate_from_pulsar_async() for blocking clients and engines. `on_progress` is called on the client's thread."""
    work = migrate_from_pulsar_async(
        url, destination._client, topic, to=to, token=token, tls=tls, verify=verify, compression=compression,
        on_progress=on_progress,
    )  # fmt: skip
    return destination._portal.run(work)
