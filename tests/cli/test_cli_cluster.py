"""`engine cluster init|status|check` against a real etcd."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from engine.cli.demo_servers import free_ports
from engine.clock import SystemClock
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from tests.kit.etcd import Etcd, new_prefix


def states(out: str) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["state"], one["text"]) for one in json.loads(out)}


def test_init_makes_the_records_once_and_check_and_status_tell_what_there_is(
    etcd: Etcd, engine: Callable[..., Any]
) -> None:
    url = etcd.url(new_prefix())
    made = engine("cluster", "init", "--metadata", url, "--json")
    assert made.code == 0, made.err
    assert states(made.out)["records"] == ("ok", "made")
    checked = engine("cluster", "check", "--metadata", url, "--json")
    assert checked.code == 0, checked.out
    found = states(checked.out)
    (member,) = [what for what in found if what.startswith("etcd 127.0.0.1") and what.count(" ") == 1]
    assert "leader" in found[member][1]
    assert "of its quota of" in found[f"{member} space"][1]
    assert found[f"{member} clock"][0] == "ok"
    assert "conditional writes are honoured" in found["etcd writes"][1]
    assert "etcd history" in found
    assert found["brokers"] == ("warning", "0 live")
    shown = engine("cluster", "status", "--metadata", url)
    assert shown.code == 0
    assert "leader" in shown.out
    assert "broker" in shown.out


async def test_the_age_of_the_oldest_revision_is_told_by_what_brokers_wrote(etcd: Etcd) -> None:
    store = await EtcdMetadataStore.open(etcd.url(new_prefix()), clock=SystemClock(), rng=random.Random(1))
    await store.put(keys.broker("engine://a"), b"{}")
    revision = await store.revision()
    assert await store.history_s(1) is None, "before it"
    age = await store.history_s(revision)
    assert age is not None
    assert 0 <= age < 60
    await store.close()


def test_a_member_that_cannot_be_reached_fails_the_check(etcd: Etcd, engine: Callable[..., Any]) -> None:
    (port,) = free_ports(1)
    url = etcd.url(new_prefix())
    host = url.removeprefix("etcd://").partition("/")[0]
    checked = engine("cluster", "check", "--metadata", url.replace(host, f"{host},127.0.0.1:{port}"), "--json")
    assert checked.code == 1
    found = states(checked.out)
    assert found[f"etcd 127.0.0.1:{port}"][0] == "failed"
    assert found["etcd writes"][0] == "ok"
