"""Whether a role exists is not told to what may not know it: each request that names one, over each door."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from engine.broker.admin.classic import ROUTES
from engine.errors import EngineError
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.model.admin_requests import NO_BODY
from engine.pulsar.messages import FIELDS, Command, framed
from engine.wire.commands import HEADERS, Connect
from engine.wire.url import parse_url
from tests.hostile.requests import ARGUMENTS, Requests
from tests.hostile.stage import EVE, MINE, THEIRS, TOPIC, WEAKEST, Stage, eve, nothing_changes, staged

DOORS = ("broker", "proxy")
THERE, NOT_THERE = "victim", "absent"  # of one length
NAMES_ROLES = ("role", "roles", "resource")  # a parameter of the admin API; of limits a resource may be a role
RESOURCES = (MINE, "mine", THEIRS, "theirs", TOPIC.removeprefix("topic://"), "*", "role:@")
CONNECTS: list[dict[str, Any]] = [
    {"token": "@"}, {"token": "@:guess"}, {"token": EVE, "role": "@"}, {"token": None, "role": "@"},
    {"token": EVE, "proxy_token": EVE, "role": "@"}, {"token": None, "proxy_token": EVE, "role": "@"},
    {"token": None, "proxy_token": "@", "role": "@"},
]  # fmt: skip


def named(values: Any, role: str) -> Any:
    return json.loads(json.dumps(values).replace("@", role))


@pytest.mark.parametrize("rights", [WEAKEST, ("admin",)], ids=" ".join)
async def test_over_http(tmp_path, rights):
    async with staged(tmp_path, rights) as stage, nothing_changes(stage), aiohttp.ClientSession() as session:
        for door in DOORS:
            requests = Requests(stage, door, session)
            for row in ROWS:
                parameters = {p.name for p in row.parameters}
                if not parameters.intersection(NAMES_ROLES):
                    continue
                for resource in RESOURCES:
                    answers = [await _asked(requests, row, resource, role) for role in (THERE, NOT_THERE)]
                    assert answers[0] == answers[1], (row.name, resource, answers)


async def _asked(requests: Requests, row: Any, resource: str, role: str) -> tuple[int, str]:
    said = {**ARGUMENTS, "resource": resource, "role": "@", "roles": ["@"], "rights": ["consume"]}
    arguments = named({p.name: said.get(p.name, p.default) for p in row.parameters}, role)
    try:
        request = row.request(arguments)
    except EngineError as e:
        return 0, str(e).replace(role, "*")
    data = None if request.body is NO_BODY else json.dumps(request.body).encode()
    status, text = await requests.ask(request.verb, request.path, data, {})
    return status, text.replace(role, "*")


async def test_over_http_of_apache_pulsar(tmp_path):
    """A tenant whose body names those that administer it, and each route that takes a name at its end."""
    async with staged(tmp_path, ("admin",)) as stage, nothing_changes(stage), aiohttp.ClientSession() as session:
        requests = Requests(stage, "broker", session)
        for tenant in ("theirs", "another"):
            found = []
            for role in (THERE, NOT_THERE):
                body = json.dumps({"adminRoles": [role], "allowedClusters": ["standalone"]}).encode()
                status, text = await requests.ask("PUT", f"/admin/v2/tenants/{tenant}", body, {})
                assert status == 403
                found.append(text.replace(role, "*"))
            assert found[0] == found[1]
        assert not [route.path for route in ROUTES if "role" in route.path.lower()]


@pytest.mark.parametrize("fields", CONNECTS, ids=str)
async def test_over_the_wire(tmp_path, fields):
    async with staged(tmp_path) as stage, nothing_changes(stage):
        for door in DOORS:
            answers = [await _greeted(stage, door, named(fields, role), role) for role in (THERE, NOT_THERE)]
            assert answers[0] == answers[1], (door, answers)


async def _greeted(stage: Stage, door: str, fields: dict[str, Any], role: str) -> str:
    """What the CONNECT is answered, and as what it lets in."""
    broker = stage.broker
    broker.doors.attempts._sources.clear()  # so that none is slowed by the ones before
    try:
        peer = await eve(stage, door, **fields)
    except (EngineError, ConnectionError) as e:
        return f"{type(e).__name__}: {e}".replace(role, "*")
    roles = {c.principal.role for c in broker.connections if c.ready} - {"victim"}
    assert roles <= {"eve", ""}, (fields, roles)
    await peer.close()
    return "let in"


@pytest.mark.parametrize("field", ["auth_data", "original_principal", "original_auth_data"])
async def test_over_the_wire_of_apache_pulsar(tmp_path, field):
    async with staged(tmp_path) as stage, nothing_changes(stage):
        answers = []
        for role in (THERE, NOT_THERE):
            stage.broker.doors.attempts._sources.clear()
            said: dict[str, Any] = {"auth_method": "token", "auth_data": EVE.encode()}
            said[field] = role.encode() if field == "auth_data" else role
            reader, writer = await asyncio.open_connection(*parse_url(stage.urls["broker"]))
            writer.write(framed("connect", client_version="eve", protocol=19, **said))
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 60), "big")
            frame = await asyncio.wait_for(reader.readexactly(size), 60)
            answers.append(frame.replace(role.encode(), b"*"))
            assert FIELDS[Command.FromString(frame[4 : 4 + int.from_bytes(frame[:4], "big")]).type] == "error"
            writer.close()
        assert answers[0] == answers[1]


def test_each_command_that_names_a_role_is_asked_here():
    """A new one belongs above."""
    assert {kind for kind in HEADERS.values() if any("role" in name for name in kind.__struct_fields__)} == {Connect}
    of_pulsar = {
        (name, field.name)
        for name in FIELDS.values()
        for field in getattr(Command(), name).DESCRIPTOR.fields
        if "role" in field.name or "principal" in field.name
    }
    assert of_pulsar == {("connect", "original_principal")}
