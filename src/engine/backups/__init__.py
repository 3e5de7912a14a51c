"""Backups: copies of a data directory while it is served, in generations that share what has not changed.

A broker keeps its files as they were at one moment (broker/upkeep/backups.py); this room copies them into packs at a
destination, a directory or an object store, and makes data directories of them again.
"""

from __future__ import annotations

from engine.backups.public import backup, backup_async, list_backups, prune_backups, restore, verify_backup
from engine.backups.results import BackedUp, BackupGeneration, Restored, VerifiedBackup

__all__ = [
    "BackedUp",
    "BackupGeneration",
    "Restored",
    "VerifiedBackup",
    "backup",
    "backup_async",
    "list_backups",
    "prune_backups",
    "restore",
    "verify_backup",
]
