"""Requests that schemathesis makes of the admin API's own document, by each kind of caller: refused, or as is due."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from yarl import URL

from engine.broker.admin.openapi import openapi
from engine.broker.rights.table import OPERATIONS as RULES
from engine.errors import EngineError
from engine.model.admin_operations import OPERATIONS as ROWS
from tests.conftest import is_fuzz
from tests.hostile.stage import EVE, MINE, ROOT, nothing_changes, shows, staged

# A broker that has no object store, or was drained, or told of an address that is none.
UNAVAILABLE = (501, 503)
_HOP = ("Host", "Connection", "Accept-Encoding", "Authorization")


def made(examples: int) -> list[tuple[str, dict[str, Any]]]:
    """(name of the operation, request) of as many as `examples` for each; the same ones each time, but in fuzzing."""
    found: list[tuple[str, dict[str, Any]]] = []
    for each in schemathesis.openapi.from_dict(openapi("http://127.0.0.1")).get_all_operations():
        found += requests_of(each.ok(), examples)
    assert {name for name, _ in found} == {row.name for row in ROWS}
    return found


def requests_of(operation: Any, examples: int) -> list[tuple[str, dict[str, Any]]]:
    cases: list[Any] = []

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    name = operation.definition.raw["operationId"]
    return [(name, case.as_transport_kwargs(base_url="http://127.0.0.1")) for case in cases]


async def send(
    session: aiohttp.ClientSession, base: str, request: dict[str, Any], token: str | None
) -> tuple[int, str]:
    """(status, text)."""
    url = URL(base + request["url"].removeprefix("http://127.0.0.1"), encoded=True).extend_query(
        {name: str(value) for name, value in request.get("params", {}).items() if value is not None}
    )
    headers = {name: value for name, value in request["headers"].items() if name not in _HOP}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = json.dumps(request["json"]).encode() if "json" in request else request.get("data")
    async with session.request(request["method"], url, headers=headers, data=data, allow_redirects=False) as answer:
        return answer.status, await answer.text(errors="replace")


def allowed(name: str, request: dict[str, Any]) -> bool:
    """Whether the table allows it for eve, which may look up its own namespace."""
    (row,) = [row for row in ROWS if row.name == name]
    if row.without_token:
        return True
    path = URL(request["url"], encoded=True).path
    needs_none = name in ("list_namespaces", "list_tenants", "get_description", "get_permissions")
    assert not needs_none or not RULES[name]({}).rights
    return needs_none or MINE in path


@pytest.fixture(scope="module")
def requests(pytestconfig) -> list[tuple[str, dict[str, Any]]]:
    return made(100 if is_fuzz(pytestconfig) else 2)


async def attack(stage: Any, requests: list[tuple[str, dict[str, Any]]], token: str | None) -> None:
    async with aiohttp.ClientSession() as session:
        for name, request in requests:
            status, text = await send(session, stage.admin_urls["broker"], request, token)
            what = f"{name} {request['method']} {request['url']} {request.get('json')}: {status} {text[:300]}"
            assert status < 500 or (status in UNAVAILABLE and token == ROOT), what
            assert "Traceback" not in text, what
            if status >= 400 and text:
                assert json.loads(text)["code"] != EngineError.code, what
            if token != ROOT:
                assert status >= 400 or allowed(name, request), what
                assert not shows(text), what
            if token is None:
                (row,) = [row for row in ROWS if row.name == name]
                assert status in (400, 401) or row.without_token, what


@pytest.mark.parametrize("token", [EVE, None], ids=["eve", "nobody"])
async def test_without_the_right_nothing_of_the_document_is_allowed(tmp_path, requests, token):
    async with staged(tmp_path) as stage, nothing_changes(stage):
        await attack(stage, requests, token)


async def test_with_all_rights_no_request_of_the_document_is_a_fault(tmp_path, requests):
    async with staged(tmp_path) as stage:
        await attack(stage, requests, ROOT)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("token", [EVE, None, ROOT], ids=["eve", "nobody", "root"])
async def test_many_requests_of_the_document(tmp_path, requests, token):
    async with staged(tmp_path) as stage:
        await attack(stage, requests, token)
