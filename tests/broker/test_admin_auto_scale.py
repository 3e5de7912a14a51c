"""Auto-scale policies of topics and namespaces: in process, over HTTP, from a client; and what stats say of them."""

from __future__ import annotations

import aiohttp
import pytest

from engine.client import AsyncClient
from engine.errors import InvalidArgumentError, NotFoundError

TOPIC = "/admin/v2/scalable/public/default/orders/autoScalePolicy"
NAMESPACE = "/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"
OURS = {"enabled": False, "max_segments": 7, "split_cooldown": 5.5}
THEIRS = {"enabled": False, "maxSegments": 7, "splitCooldown": 5.5}
WRONG = [
    ({"colour": 1}, "colour.* is unknown; known are enabled, "),
    ({"max_segments": 0}, "max_segments is 0; an integer from 1"),
    ({"split_cooldown": "soon"}, "split_cooldown is 'soon'; a number of seconds"),
    ({"enabled": 1}, "enabled is 1; true or false"),
    ([], "mapping"),
]


@pytest.fixture
async def http(broker):
    host, port = await broker.serve_admin("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        yield session


@pytest.fixture(params=["in process", "http"])
async def admin(broker, http, request):
    """The same methods both ways."""
    if request.param == "in process":
        yield broker.admin
        return
    host, port = await broker.serve("127.0.0.1", 0)
    async with AsyncClient(f"engine://{host}:{port}") as client:
        yield client.admin


async def test_a_topics_policy_is_set_read_replaced_and_removed(admin):
    await admin.create_topic("orders")
    assert await admin.get_auto_scale_policy("orders") == {}
    await admin.set_auto_scale_policy("orders", OURS)
    assert await admin.get_auto_scale_policy("orders") == OURS
    await admin.set_auto_scale_policy("orders", {"min_segments": 2})
    assert await admin.get_auto_scale_policy("orders") == {"min_segments": 2}
    await admin.remove_auto_scale_policy("orders")
    assert await admin.get_auto_scale_policy("orders") == {}
    await admin.remove_auto_scale_policy("orders")


async def test_a_namespaces_policy_is_set_read_replaced_and_removed(admin):
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}
    await admin.set_namespace_auto_scale_policy("public/default", OURS)
    assert await admin.get_namespace_auto_scale_policy("public/default") == OURS
    await admin.remove_namespace_auto_scale_policy("public/default")
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}


async def test_a_namespaces_other_policies_stay_as_they_are(admin):
    before = await admin.get_namespace_policies("public/default")
    await admin.set_namespace_auto_scale_policy("public/default", OURS)
    assert await admin.get_namespace_policies("public/default") == before
    await admin.set_namespace_policies("public/default", {"retention_time_s": 5})
    assert await admin.get_namespace_auto_scale_policy("public/default") == OURS
    await admin.remove_namespace_auto_scale_policy("public/default")
    assert (await admin.get_namespace_policies("public/default"))["retention_time_s"] == 5


@pytest.mark.parametrize(("policy", "text"), WRONG)
async def test_what_is_wrong_is_named_and_nothing_is_set(admin, policy, text):
    await admin.create_topic("orders")
    with pytest.raises(InvalidArgumentError, match=text):
        await admin.set_auto_scale_policy("orders", policy)
    with pytest.raises(InvalidArgumentError, match=text):
        await admin.set_namespace_auto_scale_policy("public/default", policy)
    assert await admin.get_auto_scale_policy("orders") == {}
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}


async def test_topics_that_are_not_there(admin):
    for refused in (
        admin.set_auto_scale_policy("nothing", {}),
        admin.get_auto_scale_policy("nothing"),
        admin.remove_auto_scale_policy("nothing"),
    ):
        with pytest.raises(NotFoundError):
            await refused


async def test_over_http_fields_have_the_specifications_names(http, broker):
    await broker.admin.create_topic("orders")
    for path in (TOPIC, NAMESPACE):
        async with http.put(path, json=THEIRS) as response:
            assert response.status == 204
        async with http.get(path) as response:
            assert await response.json() == THEIRS
        for body, text in (
            ({"max_segments": 1}, "'max_segments' is unknown"),
            ({"maxSegments": 0}, "max_segments is 0"),
        ):
            async with http.put(path, json=body) as response:
                assert response.status == 400
                assert text in (await response.json())["reason"]
        async with http.delete(path) as response:
            assert response.status == 204
        async with http.get(path) as response:
            assert await response.json() == {}
