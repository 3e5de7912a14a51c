"""Limits of a proxy that change while it runs: by requests at its HTTP port, and by its configuration read again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

import engine
from engine.aio.memory_limiter import LimitType
from engine.broker.rights.token_file import line_of
from engine.cli.reloading import reload_proxy
from engine.errors import ConnectError, InvalidConfigurationError
from engine.limits import MIB
from engine.proxy.config import ProxyConfig
from engine.proxy.limits import LIMITS, RunTimeLimits
from tests.proxy.proxies import WAIT_S, Served, until

PATH = "/admin/v2/proxy/configuration"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as made:
        yield made


async def asked(session: aiohttp.ClientSession, front: Served, verb: str, path: str = "") -> tuple[int, Any]:
    async with session.request(verb, f"{front.admin_url}{PATH}{path}") as answer:
        return answer.status, await answer.json() if answer.content_type == "application/json" else None


async def test_connections_max_at_run_time(front: Served, session: aiohttp.ClientSession) -> None:
    async with engine.AsyncClient(front.url) as client:
        await client.list_topics()
        there = front.proxy.statistics().sessions
        assert await asked(session, front, "POST", f"/connections_max/{there}") == (204, None)
        with pytest.raises(ConnectError, match=f"its maximum of {there} connections"):
            async with engine.AsyncClient(front.url, operation_timeout=1.0) as refused:
                await refused.list_topics()
        assert await client.list_topics() == [], "what is connected stays"
        assert await asked(session, front, "DELETE", "/connections_max") == (204, None)
        async with engine.AsyncClient(front.url) as further:
            await further.list_topics()
    assert await front.broker.admin.get_dynamic_configuration() == {}, "the limit is the proxy's, no broker's"


async def test_a_request_that_waits_for_memory_is_served_when_the_limit_rises(
    front: Served, session: aiohttp.ClientSession
) -> None:
    pool = front.proxy.limiter.pool(LimitType.HEAP_MEMORY)
    assert await asked(session, front, "POST", "/topic_list_heap_max/1MB") == (204, None)
    held = await pool.acquire(MIB)
    async with engine.AsyncClient(front.url) as client, asyncio.timeout(WAIT_S):
        listing = asyncio.ensure_future(client.list_topics())
        await until(lambda: pool.queue)
        assert await asked(session, front, "POST", "/maxTopicListInFlightHeapMemSizeMB/64") == (204, None)
        assert await listing == []
    pool.release(held)
    assert pool.limit == 64 * MIB


async def test_what_is_set_and_in_effect_is_shown(front: Served, session: aiohttp.ClientSession) -> None:
    assert (await asked(session, front, "GET"))[1] == list(LIMITS)
    millis = "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis"
    for name, value in ((millis, "1500"), ("topic_list_heap_timeout", "2m"), ("topic_list_direct_queue_max", "0")):
        assert (await asked(session, front, "POST", f"/{name}/{value}"))[0] == 204
    given = {"topic_list_direct_queue_max": 0, "topic_list_direct_timeout": 1.5, "topic_list_heap_timeout": 120.0}
    assert (await asked(session, front, "GET", "/values"))[1] == given
    shown = (await asked(session, front, "GET", "/runtime"))[1]
    assert shown == {**{name: getattr(ProxyConfig(brokers=("engine://b",)), name) for name in LIMITS}, **given}
    direct = front.proxy.limiter.pool(LimitType.DIRECT_MEMORY)
    assert (direct.timeout, direct.queue_max) == (1.5, 0)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nonsense/1", "must be one of connections_max"),
        ("/auth_token/x", "must be one of connections_max"),
        ("/connections_max/0", "connections_max must be"),
        ("/connections_max/many", "connections_max must be a number, got 'many'"),
        ("/topic_list_heap_max/1KB", "topic_list_heap_max must be"),
        ("/topic_list_heap_timeout/soon", "which may have a unit, got 'soon'"),
        ("/maxTopicListInFlightHeapMemSizeMB/1GB", "must be a number, got '1GB'"),
    ],
)
async def test_an_invalid_limit_is_refused_and_changes_nothing(
    front: Served, session: aiohttp.ClientSession, path: str, said: str
) -> None:
    before = front.proxy.config
    status, body = await asked(session, front, "POST", path)
    assert status == 400
    assert said in str(body)
    assert front.proxy.config == before


async def test_limits_are_guarded_like_everything_else_at_the_port(serve, session: aiohttp.ClientSession) -> None:
    async with serve(auth_token="s3cret") as front:
        assert (await asked(session, front, "POST", "/connections_max/1"))[0] == 401
        assert (await asked(session, front, "GET", "/runtime"))[0] == 401
        assert front.proxy.limits.values() == {}


async def test_a_configuration_that_is_read_again_sets_limits(front: Served) -> None:
    config = dataclasses.replace(front.proxy.config, connections_max=7, topic_list_heap_max=2 * MIB, cluster_name="x")
    front.proxy.limits.set("topic_list_heap_queue_max", "5")
    reload_proxy(front.proxy, config)
    assert (front.proxy.config.connections_max, front.proxy.config.cluster_name) == (7, "standalone")
    pool = front.proxy.limiter.pool(LimitType.HEAP_MEMORY)
    assert (pool.limit, pool.queue_max) == (2 * MIB, 5), "what was set at run time stays"
    front.proxy.limits.unset("topic_list_heap_queue_max")
    assert pool.queue_max == config.topic_list_heap_queue_max


def test_what_is_refused_is_not_kept() -> None:
    applied: list[ProxyConfig] = []
    limits = RunTimeLimits(ProxyConfig(brokers=("engine://b",)), applied.append)
    with pytest.raises(InvalidConfigurationError):
        limits.set("connections_max", "0")
    limits.unset("connections_max")
    assert (limits.values(), applied) == ({}, [])


async def test_where_brokers_have_roles_limits_are_changed_by_operators_alone(serve, tmp_path) -> None:
    """The proxy has no token of its own, and asks a broker."""
    roles = tmp_path / "roles"
    roles.write_text("".join(f"{line_of(role, f'token-of-{role}')}\n" for role in ("root", "eve")))
    async with serve({"roles_file": str(roles), "superusers": ["root"]}) as front:
        url = f"{front.admin_url}{PATH}/topic_list_heap_max"
        async with engine.AsyncClient(front.url, token="token-of-root"), aiohttp.ClientSession() as session:
            for token, status in ((None, 401), ("token-of-eve", 403), ("token-of-root", 204)):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                for verb, path in (("POST", f"{url}/2097152"), ("DELETE", url)):
                    async with session.request(verb, path, headers=headers) as answer:
                        assert answer.status == status, (token, verb)
