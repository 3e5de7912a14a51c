"""Migration: copies topics from one server, cluster or data directory to another, so that it may be cut short and run
again.

Each segment of the source has a producer of its own at the destination, whose sequence ids are the source's offsets. So
the destination itself knows how far the copy has come, and what is sent again is recognised as a duplicate.
"""

from __future__ import annotations

from engine.migration.from_pulsar import migrate_from_pulsar, migrate_from_pulsar_async
from engine.migration.migrating import Migrated, migrate, migrate_async

__all__ = ["Migrated", "migrate", "migrate_async", "migrate_from_pulsar", "migrate_from_pulsar_async"]
