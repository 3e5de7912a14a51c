"""`engine cluster`: what a cluster stands on: etcd, object storage, brokers. Needs no broker, but for what it lists."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.cli import output
from engine.cli.connection import json_option
from engine.cli.groups import Group, examples
from engine.clock import SystemClock
from engine.errors import EngineError, InvalidConfigurationError
from engine.metadata import keys

if TYPE_CHECKING:
    from engine.metadata.etcd.store import EtcdMetadataStore

F = TypeVar("F", bound=Callable[..., Any])

AHEAD_S_MAX = 2.0  # of a clock: its time is known to about a second
QUOTA_SHARE_MAX = 0.8
HISTORY_S_MAX = 3600.0  # brokers have etcd forget what is older than ten minutes
OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: str
    text: str


def _options(command: F) -> F:
    metadata = click.option(
        "--metadata",
        envvar="ENGINE_METADATA",
        metavar="URL",
        required=True,
        help="The cluster's etcd://HOST:PORT,…/PREFIX; also ENGINE_METADATA.",
    )
    return metadata(json_option(command))


@click.group(cls=Group)
def command() -> None:
    """Look at what a cluster stands on: etcd, object storage, brokers."""


@command.command(epilog=examples("engine cluster init --metadata etcd://etcd1,etcd2,etcd3/engine"))
@_options
def init(metadata: str, as_json: bool) -> None:
    """Make a cluster's records in etcd, and try that brokers can use it.

    Brokers do this themselves at their first start. Where there is a cluster it is left as it is.
    """
    findings = _run(_init(metadata))
    _show(findings, as_json)


async def _init(url: str) -> list[Finding]:
    store = await _open(url)
    try:
        some = await store.list_keys("/", keys.LAST, 1)
        return [Finding("records", OK, "exist, and are left as they are" if some else "made"), await _speed(store)]
    finally:
        await store.close()


@command.command(epilog=examples("engine cluster status --metadata etcd://etcd1,etcd2,etcd3/engine"))
@_options
def status(metadata: str, as_json: bool) -> None:
    """List the members of etcd and the live brokers."""
    members, brokers = _run(_status(metadata))
    if as_json:
        output.print_json({"etcd": members, "brokers": brokers})
        return
    output.print_table(
        ["etcd", "version", "state", "revision", "MB"],
        [
            (
                one["endpoint"],
                one["version"],
                one["fault"] or ", ".join(("leader" if one["leads"] else "member", *one["alarms"])),
                one["revision"],
                round(one["database_bytes"] / 1e6, 1),
            )
            for one in members
        ],
    )
    output.print_table(
        ["broker", "state", "segments"],
        [(one["url"], "draining" if one["draining"] else "live", one["segments"]) for one in brokers],
    )


async def _status(url: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from engine.control.base.brokers import BrokerRecord

    store = await _open(url)
    try:
        found = [BrokerRecord.of(one) for one in await store.list(keys.BROKERS, keys.prefix_end(keys.BROKERS))]
        brokers = [{"url": one.url, "draining": one.draining, "segments": one.segments} for one in found]
        return [asdict(one) for one in await store.members()], brokers
    finally:
        await store.close()


@command.command(
    epilog=examples(
        "engine cluster check --metadata etcd://etcd1,etcd2,etcd3/engine",
        "engine cluster check --metadata etcd://etcd1/engine --objects s3://bucket/engine",
    )
)
@click.option("--objects", envvar="ENGINE_OBJECTS", metavar="URL", help="Look at this object storage, too.")
@_options
def check(metadata: str, objects: str | None, as_json: bool) -> None:
    """Try what brokers need, and tell what is missing, slow or near its end.

    What is reachable, in which versions; clocks; how long a PUT and a compare-and-set take; whether conditional writes
    are honoured; the quota of etcd, and how old its oldest revision is. Ends with 1 where something has failed.
    """
    findings = _run(_check(metadata, objects))
    _show(findings, as_json)
    if any(one.state == FAILED for one in findings):
        click.get_current_context().exit(1)


async def _check(url: str, objects: str | None) -> list[Finding]:
    findings: list[Finding] = []
    store = await _open(url)
    try:
        members = await store.members()
        for one in members:
            findings += _of_member(one)
        compacted = max((one.compacted for one in members if one.compacted is not None), default=None)
        findings += [await _speed(store), await _history(store, compacted)]
        live = await store.list_keys(keys.BROKERS, keys.prefix_end(keys.BROKERS))
        findings.append(Finding("brokers", OK if live else WARNING, f"{len(live)} live"))
    finally:
        await store.close()
    if objects is not None:
        findings += await _objects(objects)
    return findings


def _of_member(member: Any) -> list[Finding]:
    what = f"etcd {member.endpoint}"
    if member.fault:
        return [Finding(what, FAILED, member.fault)]
    role = "leader" if member.leads else "member"
    found = [Finding(what, FAILED if member.alarms else OK, ", ".join((f"{member.version}, {role}", *member.alarms)))]
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


async def _speed(store: EtcdMetadataStore) -> Finding:
    from engine.metadata.etcd.inspection import latency

    try:
        took = await latency(store, SystemClock())
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


async def _objects(url: str) -> list[Finding]:
    from engine.storage.objects.probe import probe
    from engine.storage.objects.remote import RemoteObjectStore

    clock, what = SystemClock(), f"objects {url}"
    try:
        store = RemoteObjectStore.open(url, os.environ, rng=random.Random())
        began = clock.monotonic()
        await probe(store, random.Random())
    except EngineError as e:
        return [Finding(what, FAILED, str(e))]
    took = 1000 * (clock.monotonic() - began)
    return [Finding(what, OK, f"conditional writes are honoured; two PUTs, a GET and a deletion took {took:.1f} ms")]


async def _open(url: str) -> EtcdMetadataStore:
    from engine.metadata.etcd.url import EtcdUrl

    EtcdUrl.parse(url)
    try:
        from engine.metadata.etcd.store import EtcdMetadataStore
    except ImportError as e:
        raise InvalidConfigurationError(f"etcd needs {e.name}: pip install 'engine[cluster]'") from e
    return await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random())


T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _show(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        output.print_json([asdict(one) for one in findings])
    else:
        output.print_table(["what", "state", ""], [(one.what, one.state, one.text) for one in findings])
