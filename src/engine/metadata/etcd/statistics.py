"""What a store in etcd counts."""

from __future__ import annotations

from dataclasses import dataclass

from engine.aio.histogram import HistogramStatistics


@dataclass(frozen=True, slots=True)
class EtcdStatistics:
    """Counters since the store was opened; `watches` are those that are open.

    `refused`: writes that were tried again, as their keys were not as this process knew them. `unknown`: transactions
    whose outcome etcd did not tell in time. `full`: calls that were refused for want of space in etcd.
    `unusable`: new certificates that could not be used.
    """

    writes: int
    transactions: int
    refused: int
    conflicts: int
    unknown: int
    full: int
    watches: int
    watch_streams: int
    watch_restarts: int
    version: int
    unusable: int
    transaction_s: HistogramStatistics
