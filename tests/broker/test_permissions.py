"""What a caller may do, as it is told; and what `GET /` of the admin port says to programs, browsers and strangers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights.need import Need
from engine.broker.rights.token_file import line_of
from engine.client import AsyncClient
from engine.model.rights import GRANTABLE, Right
from tests.broker.over_http import call
from tests.broker.test_rights_matrix import TOPIC, WHO
from tests.kit.peer import listening

RESOURCES = ("*", "public", "public/default", "public/default/orders", "other")


@pytest.fixture
async def guarded(start_broker: Any, tmp_path: Any) -> Any:
    """A broker with roles, and what they are granted."""
    path = tmp_path / "roles"
    path.write_text("".join(line_of(who.name, f"token-{who.name}") + "\n" for who in WHO))
    async with start_broker(roles_file=str(path), superusers=("root",)) as broker:
        await broker.admin.create_topic(TOPIC)
        for who in WHO:
            for resource, rights in (who.granted or {}).items():
                await broker.admin.grant(resource, who.name, rights, subscription_prefix=who.prefix)
        await broker.serve_admin("127.0.0.1", 0)
        yield broker


@pytest.mark.parametrize("who", WHO, ids=lambda who: who.name)
async def test_each_role_is_told_what_the_checks_allow_it(guarded: Any, who: Any) -> None:
    async with AsyncClient(await listening(guarded), token=f"token-{who.name}") as client:
        for resource in RESOURCES:
            told = await client.admin.get_permissions(resource)
            assert (told["role"], told["resource"]) == (who.name, resource)
            allowed = [name for name in GRANTABLE if who.may(Need(Right[name.upper()], resource))]
            assert told["rights"] == allowed
            prefixes = [who.prefix] if who.prefix and "consume" in allowed else None
            assert told["subscriptionPrefixes"] == prefixes


async def test_without_roles_all_is_allowed(broker: Any, http: aiohttp.ClientSession) -> None:
    told = await call(http, "GET", "/admin/v2/permissions/public%2Fdefault", 200)
    assert told == await broker.admin.get_permissions("public/default")
    assert (told["role"], told["rights"]) == ("", list(GRANTABLE))
    refused = await call(http, "GET", "/admin/v2/permissions/a%2Fb%2Fc%2Fd", 400)
    assert refused["reason"].startswith("resource must be")
    with pytest.raises(engine.InvalidArgumentError, match="resource must be"):
        await broker.admin.get_permissions("a/b/c/d")


async def test_the_first_page_names_the_others(broker: Any, http: aiohttp.ClientSession) -> None:
    told = await call(http, "GET", "/", 200)
    assert (told["product"], told["version"]) == ("engine", version("engine"))
    assert told["console"].startswith("engine console --url")
    for name in ("health", "ready", "metrics", "openapi"):
        await call(http, "GET", told[name], 200)
    async with http.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) as answer:
        page = await answer.text()
        assert answer.content_type == "text/html"
        assert answer.headers["Vary"] == "Accept"
    assert all(f'href="{told[name]}"' in page for name in ("health", "ready", "metrics", "openapi"))
    assert told["console"] in page
    async with http.head("/") as answer:
        assert answer.status == 200


async def test_a_stranger_learns_no_version(guarded: Any) -> None:
    async with aiohttp.ClientSession(guarded.admin_url) as http:
        assert (await call(http, "GET", "/", 200))["version"] == ""
        await call(http, "GET", "/admin/v2/permissions/*", 401)
