"""Limits that are set while a broker runs: they count at once, over restarts, and for nobody who cannot read them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from engine.broker.admin.dynamic import DYNAMIC
from engine.broker.settings.config import BrokerConfig
from engine.errors import ConnectError, InvalidArgumentError, InvalidConfigurationError
from engine.limits import MIB
from engine.metadata import keys
from tests.broker.over_http import call
from tests.kit.peer import Peer

BASE = "/admin/v2/brokers/configuration"


def limits_of(broker, names) -> dict[str, int]:
    return {pool.name: pool.limit for pool in broker.memory.pools() if pool.name in names}


@pytest.mark.parametrize(
    ("name", "value", "key", "found"),
    [
        ("maxTopicListInFlightHeapMemSizeMB", "512", "topic_list_heap_max", 512 * MIB),
        ("maxTopicListInFlightDirectMemSizeMB", "200", "topic_list_direct_max", 200 * MIB),
        ("maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis", "2500", "topic_list_heap_timeout", 2.5),
        ("maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize", "7", "topic_list_direct_queue_max", 7),
        ("maxMessagePublishBufferSizeInMB", "64", "publish_bytes_max", 64 * MIB),
        ("publish_bytes_max", "64MB", "publish_bytes_max", 64 * MIB),
        ("topic_list_heap_timeout", "2s", "topic_list_heap_timeout", 2.0),
        ("connections_max", 5, "connections_max", 5),
    ],
)
async def test_by_either_name_in_the_unit_it_has_there(broker, name, value, key, found):
    await broker.admin.set_dynamic_configuration(name, value)
    assert await broker.admin.get_dynamic_configuration() == {key: found}
    assert (await broker.admin.get_runtime_configuration())[key] == found
    assert getattr(broker.config, key) == found
    await broker.admin.remove_dynamic_configuration(name)
    assert getattr(broker.config, key) == getattr(BrokerConfig(), key)
    assert await broker.admin.get_dynamic_configuration() == {}


async def test_every_limit_of_memory_counts_at_once(broker):
    pools = {
        "publish": "publish_bytes_max",
        "reads": "reads_in_flight_max",
        "receive": "receive_buffers_max",
        "topic_list_heap": "topic_list_heap_max",
        "topic_list_direct": "topic_list_direct_max",
        "lookups": "lookups_max",
        "attachments": "attachments_max",
        "topic_loads": "topic_loads_max",
    }
    for pool in list(broker.memory.pools()):
        if pool.name in pools:
            await broker.admin.set_dynamic_configuration(pools[pool.name], pool.limit + 1)
    before = limits_of(broker, pools)
    assert before == {name: getattr(broker.config, key) for name, key in pools.items()}
    assert before != {name: getattr(BrokerConfig(), key) for name, key in pools.items()}
    await broker.admin.set_dynamic_configuration("read_cache_max", 8 * MIB)
    assert broker.store.statistics().cache_limit == 8 * MIB


async def test_a_limit_of_connections_counts_for_the_next_one(broker):
    await Peer.connect(broker)
    await broker.admin.set_dynamic_configuration("connections_max", 1)
    with pytest.raises(ConnectError):
        await Peer.connect(broker)


async def test_it_wins_over_what_a_broker_is_started_with_until_it_is_taken_back(start_broker):
    async with start_broker(connections_max=50) as broker:
        await broker.admin.set_dynamic_configuration("connections_max", 60)
    async with start_broker(connections_max=70) as broker:
        assert broker.config.connections_max == 60
        await broker.admin.remove_dynamic_configuration("connections_max")
        assert broker.config.connections_max == 70
    async with start_broker(connections_max=80) as broker:
        assert broker.config.connections_max == 80


async def test_over_http(broker, http):
    assert await call(http, "GET", BASE, 200) == list(DYNAMIC)
    await call(http, "POST", f"{BASE}/maxTopicListInFlightHeapMemSizeMB/512")
    assert await call(http, "GET", f"{BASE}/values", 200) == {"topic_list_heap_max": 512 * MIB}
    assert (await call(http, "GET", f"{BASE}/runtime", 200))["topic_list_heap_max"] == 512 * MIB
    await call(http, "DELETE", f"{BASE}/maxTopicListInFlightHeapMemSizeMB")
    await call(http, "DELETE", f"{BASE}/topic_list_heap_max")
    assert await call(http, "GET", f"{BASE}/values", 200) == {}


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("nonsense", "1", InvalidArgumentError),
        ("segments", "4", InvalidArgumentError),  # a setting, and none that changes
        ("auth_token", "secret", InvalidArgumentError),
        ("publish_bytes_max", "3", InvalidConfigurationError),
        ("publish_bytes_max", "much", InvalidConfigurationError),
        ("maxMessagePublishBufferSizeInMB", "-1", InvalidConfigurationError),
        ("topic_list_heap_timeout", "none", InvalidConfigurationError),
        ("connections_max", "1.5", InvalidConfigurationError),
    ],
)
async def test_what_is_wrong_is_refused_by_name_and_changes_nothing(broker, http, name, value, error):
    answer = await call(http, "POST", f"{BASE}/{name}/{value}", 400)
    assert answer["code"] == error.code
    with pytest.raises(error):
        await broker.admin.set_dynamic_configuration(name, value)
    assert await broker.admin.get_dynamic_configuration() == {}


async def test_nothing_secret_is_told(start_broker):
    async with start_broker(auth_token="secret") as broker:
        assert set(await broker.admin.get_runtime_configuration()) == set(DYNAMIC)


async def test_what_cannot_be_read_is_said_and_left_alone(start_broker, caplog):
    """A newer broker's setting, or one that somebody has written by hand."""
    async with start_broker() as broker:
        for name, value in {"from_the_future": b"1", "connections_max": b"{", "lookups_max": b'"many"'}.items():
            await broker.metadata.put(keys.setting(name), value)
        await broker.metadata.put(keys.setting("topic_loads_max"), json.dumps(9).encode())
        async with asyncio.timeout(10):
            while broker.config.topic_loads_max != 9:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
    caplog.clear()
    async with start_broker() as broker:
        assert await broker.admin.get_dynamic_configuration() == {"topic_loads_max": 9}
        assert broker.config.connections_max == BrokerConfig().connections_max
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    for name in ("from_the_future", "connections_max", "lookups_max"):
        assert any(name in message for message in said), name


def test_the_docs_have_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    section = page.partition("## At run time")[2].partition("\n## ")[0]
    assert re.findall(r"`(\w+)`", section) == list(DYNAMIC)


def test_all_of_them_are_keys_of_the_configuration():
    config = BrokerConfig()
    assert all(isinstance(getattr(config, name), int | float) for name in DYNAMIC)
    assert list(DYNAMIC) == sorted(set(DYNAMIC))
