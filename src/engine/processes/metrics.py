"""The metrics of the parent process: the metadata store, and its children."""

from __future__ import annotations

from collections.abc import Iterator

from engine.broker.metrics.exposition import AnyFamily, FlatFamily, counter, flat, gauge
from engine.broker.metrics.process import process_families
from engine.broker.metrics.whole import backup_families, metadata_families
from engine.broker.upkeep.backups import BackupStatistics
from engine.metadata.sqlite import SqliteMetadataStore
from engine.processes.supervision import State, Supervision
from engine.proxy.metrics import proxy_families
from engine.proxy.server import Proxy

_COMMON = {"process": "parent"}


def parent_families(
    supervision: Supervision, store: SqliteMetadataStore, backups: BackupStatistics, proxy: Proxy | None
) -> list[FlatFamily]:
    """`proxy`: where clients reach the children through the parent."""
    own = process_families() if proxy is None else proxy_families(proxy)
    return flat([*metadata_families(store.statistics()), *backup_families(backups), *own], _COMMON) + flat(
        child_families(supervision)
    )


def child_families(supervision: Supervision) -> Iterator[AnyFamily]:
    labelled = [({"process": str(index)}, process) for index, process in enumerate(supervision.processes)]
    up = [(labels, float(process.state is State.SERVING)) for labels, process in labelled]
    yield gauge("process_serving", "1: the process serves", up)
    text = "Times that the process was started again after it had died"
    yield counter("process_restarts_total", text, [(labels, process.restarts) for labels, process in labelled])
