"""What an operator wants to know of etcd: members, their space, whether they agree, how long a write takes, how old the
oldest revision is.

Version, size and alarms come from each member by its own interface. The quota, and up to where history is compacted,
are only among a member's metrics, which it serves over HTTP at the same port; so does its clock, in whole seconds.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import statistics
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError

from engine.clock import Clock
from engine.errors import ConnectError
from engine.metadata import keys
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster, CompactedError
from engine.metadata.etcd.layout import Layout, decoded
from engine.metadata.etcd.url import EtcdUrl
from engine.metadata.store import ABSENT, ConflictError

if TYPE_CHECKING:
    import random

    from engine.metadata.etcd.store import EtcdMetadataStore

TIMEOUT_S = 3.0
_SAMPLES = 9
_HASH_S_MAX = 30.0  # a member reads all of its database for it
_COMPARISONS = 3  # members compact one after another: what is compared in between is compared again
_CHECK = "/check/"
_METRIC = re.compile(r"^(etcd_server_quota_backend_bytes|etcd_debugging_mvcc_compact_revision) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Member:
    """One member as it is now. None: it does not say. `fault`: why it cannot be asked, else "".

    `ahead_s`: by how many seconds its clock is ahead of this machine's; known to about a second.
    """

    endpoint: str
    fault: str = ""
    version: str = ""
    leads: bool = False
    revision: int = 0
    database_bytes: int = 0
    alarms: tuple[str, ...] = ()
    quota_bytes: int | None = None
    compacted: int | None = None
    ahead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """Whether members have the same records at one revision.

    `differing`: what each of them has, where that differs, else "". `unknown`: why that could not be told, else "".
    """

    revision: int
    differing: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians in seconds of a put, and of a compare-and-set of the record that was put. `honoured`: a compare-and-set
    of a version that is over was refused.
    """

    put_s: float
    compare_and_set_s: float
    honoured: bool


async def members(url: EtcdUrl, cluster: Cluster, clock: Clock) -> list[Member]:
    """Each member of the URL."""
    return list(await asyncio.gather(*(_member(url, cluster, clock, endpoint) for endpoint in url.endpoints)))


async def members_of(url: str, clock: Clock, rng: random.Random) -> list[Member]:
    """Each member of a URL, where the store cannot be opened: it has no majority, for instance."""
    parsed = EtcdUrl.parse(url)
    cluster = Cluster(parsed, clock=clock, rng=rng, timeout=TIMEOUT_S)
    try:
        return await members(parsed, cluster, clock)
    finally:
        await cluster.close()


async def _member(url: EtcdUrl, cluster: Cluster, clock: Clock, endpoint: str) -> Member:
    try:
        status = await cluster.ask(endpoint, "Status", m.StatusRequest(), TIMEOUT_S)
    except ConnectError as e:
        return Member(endpoint, fault=str(e))
    ahead, page = await asyncio.to_thread(_fetch, url, endpoint, clock)
    told = {name: int(float(value)) for name, value in _METRIC.findall(page)}
    return Member(
        endpoint,
        version=status.version,
        leads=status.leader == status.header.member_id,
        revision=status.header.revision,
        database_bytes=status.dbSize,
        alarms=tuple(status.errors),
        quota_bytes=told.get("etcd_server_quota_backend_bytes") or None,
        compacted=told.get("etcd_debugging_mvcc_compact_revision"),
        ahead_s=ahead,
    )


def _fetch(url: EtcdUrl, endpoint: str, clock: Clock) -> tuple[float | None, str]:
    """(by how much its clock is ahead, its metrics); (None, "") where it serves none here."""
    context = None
    try:
        if url.tls:
            context = ssl.create_default_context(cafile=url.ca)
            if url.cert is not None:
                context.load_cert_chain(url.cert, url.key)
        return fetch(f"{'https' if url.tls else 'http'}://{endpoint}/metrics", clock, context)
    except (OSError, ValueError, HTTPException):
        return None, ""


def fetch(where: str, clock: Clock, context: ssl.SSLContext | None = None) -> tuple[float | None, str]:
    """(by how many seconds the clock of what answers is ahead of `clock`, known to about a second; the page). None: it
    does not tell its time. Goes over no proxy, as it asks for what is near. Raises OSError, ValueError, HTTPException.
    """
    handlers = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])]
    try:
        with urllib.request.build_opener(*handlers).open(where, timeout=TIMEOUT_S) as answer:
            page, now, date = answer.read().decode(), clock.time_ms() / 1000, answer.headers["Date"]
    except HTTPError as e:  # it says no, and tells the time all the same
        with e:
            page, now, date = "", clock.time_ms() / 1000, e.headers["Date"]
    return None if date is None else parsedate_to_datetime(date).timestamp() + 0.5 - now, page


async def history_s(cluster: Cluster, layout: Layout, clock: Clock, compacted: int) -> float | None:
    """About how old the oldest revision is that etcd still has, in seconds; None: there is nothing to tell it by.

    The records of brokers are written all the time: the newest one at that revision says when that was.
    """
    start, end = layout.record_range(keys.BROKERS, keys.prefix_end(keys.BROKERS))
    try:
        found = await cluster.call("Range", m.RangeRequest(key=start, range_end=end, revision=max(compacted, 1)))
    except CompactedError:
        return None
    written = [decoded(kv, layout.key_of(kv.key)).modified_ms for kv in found.kvs]
    return (clock.time_ms() - max(written)) / 1000 if written else None


async def contents(url: EtcdUrl, cluster: Cluster) -> Contents:
    """Compare the members of the URL by the hash that each has of all keys with their history, at a revision that all
    of them have reached. Hashes of members with different compactions say nothing, and are asked for again.
    """
    found = Contents(0, unknown="there is no member to ask")
    for _ in range(_COMPARISONS):
        try:
            found, comparable = await _compared(url, cluster)
        except ConnectError as e:
            found, comparable = Contents(0, unknown=str(e)), "compacted" not in str(e)
        if comparable:
            break
    return found


async def _compared(url: EtcdUrl, cluster: Cluster) -> tuple[Contents, bool]:
    """(what they have, whether that is worth something). Raises ConnectError."""
    asked = [cluster.ask(endpoint, "Status", m.StatusRequest(), TIMEOUT_S) for endpoint in url.endpoints]
    revision = min(one.header.revision for one in await asyncio.gather(*asked))
    at = m.HashKVRequest(revision=revision)
    hashes = await asyncio.gather(*(cluster.ask(one, "HashKV", at, _HASH_S_MAX) for one in url.endpoints))
    compacted = {one.compact_revision for one in hashes}
    if len(compacted) > 1:
        each = ", ".join(str(one) for one in sorted(compacted))
        return Contents(revision, unknown=f"they have compacted to different revisions: {each}"), False
    if len({one.hash for one in hashes}) == 1:
        return Contents(revision), True
    told = [f"{endpoint} has {one.hash:08x}" for endpoint, one in zip(url.endpoints, hashes, strict=True)]
    return Contents(revision, differing=", ".join(told)), True


async def latency(store: EtcdMetadataStore, clock: Clock, rng: random.Random) -> Latency:
    """Write a record of its own some times, and delete it. Raises what the metadata store raises."""
    key = f"{_CHECK}{rng.getrandbits(64):016x}"
    puts, sets = [], []
    honoured = False
    before = 0
    try:
        await store.put(key, b"0", ABSENT)
        for _ in range(_SAMPLES):
            began = clock.monotonic()
            stat = await store.put(key, b"1")
            put = clock.monotonic()
            await store.put(key, b"2", stat.version)
            before = stat.version
            puts.append(put - began)
            sets.append(clock.monotonic() - put)
        try:
            await store.put(key, b"3", before)
        except ConflictError:
            honoured = True
    finally:
        await store.delete(key)
    return Latency(statistics.median(puts), statistics.median(sets), honoured)
