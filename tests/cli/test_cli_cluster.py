"""`engine cluster init|status|check` against a real etcd."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import __version__ as engine_version
from engine.broker.upkeep.cluster_check import WARNING, _of_member
from engine.cli.demo_servers import free_ports
from engine.clock import SystemClock
from engine.metadata import keys
from engine.metadata.etcd.inspection import Member
from engine.metadata.etcd.store import EtcdMetadataStore
from tests.cli.cli_server import start_server, stop_server
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


NEWER = """
import sys
from engine.cli.main import main
from engine.control.base import levels
levels.SUPPORTED = (1, 2)
sys.argv[0] = "engine"
sys.exit(main())
"""


def test_a_build_that_the_cluster_has_left_behind_does_not_start(
    etcd: Etcd, engine: Callable[..., Any], tmp_path: Path
) -> None:
    url = etcd.url(new_prefix())
    first, second = (("--metadata", url, "--advertise", f"127.0.0.1:{port}") for port in free_ports(2))
    newer = start_server(tmp_path, *first, program=[sys.executable, "-c", NEWER])
    try:
        (broker,) = json.loads(engine("cluster", "status", "--metadata", url, "--json").out)["brokers"]
        assert (broker["levels"], broker["level"], broker["version"]) == ([1, 2], 2, engine_version)
        checked = states(engine("cluster", "check", "--metadata", url, "--json").out)
        assert checked["brokers"] == ("warning", "1 live, 0 of them reached from here")  # it listens elsewhere
        assert "no connection from here" in checked[f"broker {broker['url']}"][1]
        assert checked["level"] == ("failed", "2; this build works at 1 to 1")
        with pytest.raises(RuntimeError, match="works at the levels 1 to 1, and the cluster is at level 2") as refused:
            start_server(tmp_path, *second)
        assert "Traceback" not in str(refused.value)
    finally:
        stop_server(newer)


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.6", "3.5.6-rc.1", "3.5.7", "3.5.16", "3.4.23", "3.6.0", ""])
def test_members_that_may_end_themselves_are_told(version: str):
    found = _of_member(Member("etcd1:2379", version=version, quota_bytes=1 << 31))
    told = [one.text for one in found if one.what == "etcd etcd1:2379 version" and one.state == WARNING]
    assert bool(told) is (version in ("3.5.0", "3.5.1", "3.5.6", "3.5.6-rc.1"))
    assert all("3.5.7 or later" in text for text in told)
