"""What a cluster stands on, for its operators: etcd, object storage, brokers. Asked without a broker."""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from engine.clock import SystemClock
from engine.control.base.brokers import BrokerRecord
from engine.control.base.levels import SUPPORTED, Level
from engine.errors import DiskFullError, EngineError, InvalidArgumentError, InvalidConfigurationError, TimeoutError
from engine.metadata import keys
from engine.wire.url import parse_url

if TYPE_CHECKING:
    import random

    from engine.metadata.etcd.inspection import Contents, Member
    from engine.metadata.etcd.store import EtcdMetadataStore

AHEAD_S_MAX = 2.0  # of a clock: its time is known to about a second
QUOTA_SHARE_MAX = 0.8
CALL_S_MAX = 3.0  # until a broker's port is connected to
CALLED_AT_ONCE = 64
HISTORY_S_MAX = 3600.0  # brokers have etcd forget what is older than ten minutes
OK, WARNING, FAILED = "ok", "warning", "failed"
# Of 3.5, by its change log: issues 14110 (a panic, mended in 3.5.5) and 14891 (another, in 3.5.7), pull request 13908
# (members that disagree, in 3.5.3).
_SOUND_FROM = (3, 5, 7)
_UNSOUND = (
    "must be 3.5.7 or later: earlier members of 3.5 end themselves where a read runs out of time, and before 3.5.3 "
    "they may disagree after one was killed"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: str
    text: str


async def look_at_start(url: str, rng: random.Random) -> list[Finding]:
    """Make the records where there are none, and try that they can be written. Raises as EtcdMetadataStore.open()."""
    store = await _open(url, rng)
    try:
        some = await store.list_keys("/", keys.LAST, 1)
        return [Finding("records", OK, "exist, and are left as they are" if some else "made"), await _speed(store, rng)]
    finally:
        await store.close()


async def standing(url: str, rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the members of etcd, the live brokers). Raises as EtcdMetadataStore.open(), but where etcd is full."""
    store, _ = await _open_to_look(url, rng)
    try:
        found = [BrokerRecord.of(one) for one in await store.list(keys.BROKERS, keys.prefix_end(keys.BROKERS))]
        at = await store.get(keys.LEVEL)
        level = None if at is None else Level.of(at).level
        brokers = [
            {"url": one.url, "draining": one.draining, "segments": one.segments, "version": one.version,
             "levels": list(one.levels), "level": level}
            for one in found
        ]  # fmt: skip
        return [asdict(one) for one in await store.members()], brokers
    finally:
        await store.close()


async def _level(store: EtcdMetadataStore) -> Finding:
    """Whether this build may join."""
    found = await store.get(keys.LEVEL)
    if found is None:
        return Finding("level", OK, "no broker has started yet")
    lowest, highest = SUPPORTED
    now = Level.of(found)
    good = now.refused_by(lowest, highest) is None
    raised = "" if now.next is None else f", about to be raised to {now.next}"
    return Finding("level", OK if good else FAILED, f"{now.level}{raised}; this build works at {lowest} to {highest}")


async def findings_of(
    url: str, objects: str | None, rng: random.Random, environment: Mapping[str, str]
) -> list[Finding]:
    """Everything that brokers need. `objects`: the URL of the object storage. Raises as EtcdMetadataStore.open(), but
    where etcd is full or does not answer: then that is what is found.
    """
    findings = await _etcd(url, rng)
    if objects is not None:
        findings += await _objects(objects, rng, environment)
    return findings


async def _etcd(url: str, rng: random.Random) -> list[Finding]:
    findings: list[Finding] = []
    try:
        store, full = await _open_to_look(url, rng)
    except TimeoutError as e:
        from engine.metadata.etcd.inspection import members_of

        for one in await members_of(url, SystemClock(), rng):
            findings += _of_member(one)
        return [*findings, Finding("etcd", FAILED, str(e))]
    try:
        members = await store.members()
        for one in members:
            findings += _of_member(one)
        if len(members) > 1 and not any(one.fault for one in members):
            findings.append(_agreement(await store.contents()))
        compacted = max((one.compacted for one in members if one.compacted is not None), default=None)
        speed = await _speed(store, rng) if full is None else Finding("etcd writes", FAILED, str(full))
        findings += [speed, await _history(store, compacted)]
        live = await store.list(keys.BROKERS, keys.prefix_end(keys.BROKERS))
        findings += await _brokers([BrokerRecord.of(one) for one in live])
        findings.append(await _level(store))
    finally:
        await store.close()
    return findings


async def _brokers(live: Sequence[BrokerRecord]) -> list[Finding]:
    """How many there are, and each to which no connection is made from here. Clients may be elsewhere: a warning."""
    at_once = asyncio.Semaphore(CALLED_AT_ONCE)
    faults = await asyncio.gather(*(_fault_of(one.url, at_once) for one in live))
    silent = [Finding(f"broker {one.url}", WARNING, fault) for one, fault in zip(live, faults, strict=True) if fault]
    reached = f", {len(live) - len(silent)} of them reached from here" if live else ""
    found = [Finding("brokers", WARNING if silent or not live else OK, f"{len(live)} live{reached}"), *silent]
    return [*found, *await _clocks(live, at_once)] if live else found


async def _clocks(live: Sequence[BrokerRecord], at_once: asyncio.Semaphore) -> list[Finding]:
    """By how much the clocks of brokers differ from this machine's, as their admin addresses tell the time."""
    what, asked = "brokers' clocks", {one.url: one.admin_url for one in live if one.admin_url is not None}
    if not asked:
        return [Finding(what, OK, "not compared: no broker has an admin address")]
    told = await asyncio.gather(*(_ahead_s(admin_url, at_once) for admin_url in asked.values()))
    ahead = {url: found for url, found in zip(asked, told, strict=True) if found is not None}
    late = [
        Finding(f"broker {url} clock", WARNING, f"{by:+.1f} s") for url, by in ahead.items() if abs(by) > AHEAD_S_MAX
    ]
    text = f"{len(ahead)} of {len(asked)} admin addresses tell the time here"
    if ahead:
        text = f"{text}, {min(ahead.values()):+.1f} s to {max(ahead.values()):+.1f} s, to a second"
    return [Finding(what, WARNING if late or len(ahead) < len(asked) else OK, text), *late]


async def _ahead_s(admin_url: str, at_once: asyncio.Semaphore) -> float | None:
    """By how many seconds a broker's clock is ahead; None: its admin address does not answer here."""
    from engine.metadata.etcd.inspection import fetch

    async with at_once:
        try:
            return (await asyncio.to_thread(fetch, f"{admin_url}/ready", SystemClock()))[0]
        except (OSError, ValueError, HTTPException):
            return None


async def _fault_of(url: str, at_once: asyncio.Semaphore) -> str:
    """Why the port of a broker cannot be connected to; "" where it can."""
    async with at_once:
        try:
            async with asyncio.timeout(CALL_S_MAX):
                _, writer = await asyncio.open_connection(*parse_url(url))
        except builtins.TimeoutError:
            return f"no connection within {CALL_S_MAX:g} s from here"
        except (OSError, ValueError, InvalidArgumentError) as e:
            return f"no connection from here: {e}"
        writer.close()
        return ""


def _number_of(version: str) -> tuple[int, ...]:
    """Its numbers, as far as they are some."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _of_member(member: Member) -> list[Finding]:
    what = f"etcd {member.endpoint}"
    if member.fault:
        return [Finding(what, FAILED, member.fault)]
    role = "leader" if member.leads else "member"
    found = [Finding(what, FAILED if member.alarms else OK, ", ".join((f"{member.version}, {role}", *member.alarms)))]
    if _SOUND_FROM[:2] == (number := _number_of(member.version))[:2] and number < _SOUND_FROM:
        found.append(Finding(f"{what} version", WARNING, f"{member.version} {_UNSOUND}"))
    size = f"{member.database_bytes / 1e6:.1f} MB"
    if member.quota_bytes is None:
        found.append(Finding(f"{what} space", WARNING, f"{size}; it does not tell its quota (/metrics)"))
    else:
        share = member.database_bytes / member.quota_bytes
        text = f"{size}, {share:.0%} of its quota of {member.quota_bytes / 1e6:.0f} MB"
        found.append(Finding(f"{what} space", WARNING if share > QUOTA_SHARE_MAX else OK, text))
    if member.ahead_s is not None:
        late = abs(member.ahead_s) > AHEAD_S_MAX
        found.append(Finding(f"{what} clock", WARNING if late else OK, f"{member.ahead_s:+.1f} s, to a second"))
    return found


def _agreement(found: Contents) -> Finding:
    """Whether members have the same records: a client sees those of one member, and cannot tell."""
    what = "etcd members"
    if found.unknown:
        return Finding(what, WARNING, f"they could not be compared: {found.unknown}")
    if found.differing:
        return Finding(
            what, FAILED, f"must have the same records, got others at revision {found.revision}: {found.differing}; "
            "replace those that differ from the leader, one by one, with empty ones",
        )  # fmt: skip
    return Finding(what, OK, f"have the same records at revision {found.revision}")


async def _speed(store: EtcdMetadataStore, rng: random.Random) -> Finding:
    from engine.metadata.etcd.inspection import latency

    try:
        took = await latency(store, SystemClock(), rng)
    except EngineError as e:
        return Finding("etcd writes", FAILED, str(e))
    text = f"a PUT takes {1000 * took.put_s:.1f} ms, a compare-and-set {1000 * took.compare_and_set_s:.1f} ms"
    if not took.honoured:
        return Finding("etcd writes", FAILED, f"{text}; a compare-and-set of an old version was not refused")
    return Finding("etcd writes", OK, f"{text}; conditional writes are honoured")


async def _history(store: EtcdMetadataStore, compacted: int | None) -> Finding:
    what = "etcd history"
    if compacted is None:
        return Finding(what, WARNING, "no member tells up to where it is compacted (/metrics)")
    if compacted <= 0:
        return Finding(what, OK, "was never compacted")
    age = await store.history_s(compacted)
    if age is None:
        return Finding(what, OK, f"the oldest revision is {compacted}; no broker had written by then")
    text = f"the oldest revision is {compacted}, about {age:.0f} s old"
    return Finding(what, WARNING if age > HISTORY_S_MAX else OK, text)


async def _objects(url: str, rng: random.Random, environment: Mapping[str, str]) -> list[Finding]:
    from engine.storage.objects.probe import probe, put_s
    from engine.storage.objects.remote import RemoteObjectStore

    what = f"objects {url}"
    try:
        store = RemoteObjectStore.open(url, environment, rng=rng)
        try:
            await probe(store, rng)
            took = await put_s(store, rng, SystemClock())
        finally:
            await store.close()
    except EngineError as e:
        return [Finding(what, FAILED, str(e))]
    return [Finding(what, OK, f"conditional writes are honoured; a PUT takes {1000 * took:.1f} ms")]


async def _open_to_look(url: str, rng: random.Random) -> tuple[EtcdMetadataStore, DiskFullError | None]:
    """The store, and why it can only be read, where etcd is full: that is when an operator looks."""
    try:
        return await _open(url, rng), None
    except DiskFullError as e:
        return await _open(url, rng, writes=False), e


async def _open(url: str, rng: random.Random, *, writes: bool = True) -> EtcdMetadataStore:
    from engine.metadata.etcd.url import EtcdUrl

    EtcdUrl.parse(url)
    try:
        from engine.metadata.etcd.store import EtcdMetadataStore
    except ImportError as e:
        raise InvalidConfigurationError(f"etcd needs {e.name}: pip install 'engine[cluster]'") from e
    return await EtcdMetadataStore.open(url, clock=SystemClock(), rng=rng, writes=writes)
