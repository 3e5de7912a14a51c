"""`index_grants`: grants that an older build has written are put into the index by roles, at a broker's start.

A record says in its value that it was written with the index (`Grant.to_json`): a build that does not know the index
writes a value without it. The pass holds one page of records, and keeps nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from engine.broker.rights.records import indexes_of
from engine.limits import METADATA_WRITE_ALL_MAX
from engine.metadata import keys
from engine.metadata.store import MetadataStore, OutcomeUnknownError, Put, Record

log = logging.getLogger(__name__)

PAGE = 1_000  # records that are read at once


async def index_grants(metadata: MetadataStore) -> int:
    """How many were put again, by compare-and-set. Raises what the metadata store raises."""
    start, end, written = keys.GRANTS, keys.prefix_end(keys.GRANTS), 0
    while True:
        page = await metadata.newest.list(start, end, PAGE)
        puts = [put for record in page if (put := _indexed(record)) is not None]
        written += await _write(metadata, puts)
        if puts:
            continue  # this page again: one that was changed meanwhile, or whose outcome is unknown, may lack it still
        if len(page) < PAGE:
            if written:
                log.info("%d grants of an older build were put into the index by roles", written)
            return written
        start = page[-1].key + "\0"


async def _write(metadata: MetadataStore, puts: Sequence[Put]) -> int:
    """How many of them were surely written."""
    written = 0
    for at in range(0, len(puts), METADATA_WRITE_ALL_MAX):
        some = puts[at : at + METADATA_WRITE_ALL_MAX]
        try:
            outcomes = await metadata.write_all(some)
        except OutcomeUnknownError:
            continue
        written += sum(not isinstance(outcome, Exception) for outcome in outcomes)
    return written


def _indexed(record: Record) -> Put | None:
    """The same grant with its index; None: it has it, or grants nothing. Fields that are not known here are kept."""
    try:
        resource, role = keys.grant_of(record.key)
        facts = json.loads(record.value)
    except ValueError as e:
        log.warning("the grant %s in the metadata store is ignored: %s", record.key, e)
        return None
    if not isinstance(facts, dict) or facts.get("role") == role:
        return None
    value = json.dumps({**facts, "role": role}).encode()
    return Put(record.key, value, record.stat.version, indexes=indexes_of(resource, role))
