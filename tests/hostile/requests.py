"""Requests of eve's over HTTP: each operation on what is the neighbour's, and paths, headers, bodies that lie."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
from yarl import URL

from engine.broker.admin.classic import LISTS, ROUTES
from engine.broker.rights.table import OPERATIONS as RULES
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.model.admin_requests import NO_BODY
from tests.fuzz.test_rest import body
from tests.hostile.stage import EVE, MINE, QUEUE, THEIRS, TOPIC, Stage, shows

ARGUMENTS: dict[str, Any] = {
    "topic": TOPIC, "segment": f"segment://{THEIRS}/orders/0000-ffff-0", "namespace": THEIRS, "subscription": QUEUE,
    "segment_id": 0, "other_id": 1, "buckets": 8, "first": 0, "last": 2, "when": "latest", "tenant": "theirs",
    "resource": THEIRS, "role": "eve", "roles": ["eve"], "rights": ["admin"], "name": "lookups_max", "value": "1000",
    "broker": "engine://127.0.0.1:1", "policies": {"retention_time_s": 1}, "policy": {"max_segments": 1},
    "properties": {"a": "b"}, "dry_run": True, "limits": {}, "file": "plan.json", "position": 0, "size": 100,
}  # fmt: skip
WITHOUT_NEED = {row.name for row in ROWS if row.without_token} | {
    name for name in ("list_namespaces", "list_tenants", "get_description", "get_permissions") if name in RULES
}
# Headers by which a server might be made to believe something else.
LIES: list[dict[str, str]] = [
    {}, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, {"X-Real-IP": "127.0.0.1"},
    {"X-HTTP-Method-Override": "GET"}, {"X-Original-URL": "/health"}, {"X-Rewrite-URL": "/health"},
    {"Authorization": f"bearer {EVE}"}, {"Authorization": f"Bearer  {EVE} "}, {"X-Role": "root"},
    {"Cookie": "role=root; token=root"}, {"Connection": "authorization"}, {"X-Engine-Broker": "engine://127.0.0.1:1"},
]  # fmt: skip
# Of the routes of Apache Pulsar's admin API, each of which names what is the neighbour's, or nothing.
PARTS = {"tenant": "theirs", "namespace": "ns", "topic": "invoices", "subscription": QUEUE, "cluster": "standalone",
         "count": "1", "time": "0"}  # fmt: skip
CLASSIC = [(one.verb, one.path, one.need) for one in ROUTES] + [("GET", path, "list_topics") for path in LISTS]
PREFIXES = [
    *(f"/admin/v2/{kind}" for kind in ("scalable", "namespaces", "segments", "grants", "tenants", "persistent")),
    "/admin/v2/non-persistent", "/lookup/v2/topic/persistent",
]  # fmt: skip
PATHS = [
    "/theirs/ns", "/theirs/ns/orders", "/theirs/ns/orders/stats", "/theirs/ns/policies", "/%74heirs/ns/orders",
    f"/{MINE}/..%2f..%2ftheirs%2fns%2forders", f"/{MINE}/%2e%2e/%2e%2e/{THEIRS}/orders", "/theirs%2Fns%2Forders",
    f"/{MINE}/own/../../../{THEIRS}/orders", f"/{MINE}%2F..%2F../{THEIRS}/orders", "//theirs//ns//orders",
    "/theirs/ns/orders/", "/theirs/ns/orders;a=b", "/theirs/ns/orders%00", "/theirs/ns/orders%0a", "/THEIRS/NS/ORDERS",
    "/theirs%2fns/policies", "/%2a", "/*", "/theirs", "/theirs%2Fns", "/theirs%2Fns/eve", "/theirs%252Fns",
    "/./theirs/ns",
    "/theirs/ns/orders/subscriptions/q", "/theirs/ns/orders/subscriptions/q/seek", "/theirs/ns/orders/properties",
    f"/{MINE}?tenant=theirs&namespace=ns", f"/{MINE}?namespace={THEIRS}", f"/{MINE}#/{THEIRS}", "/%E2%80%AEtheirs/ns",
]  # fmt: skip
BARE = ["/metrics", "/admin/v2/transactions", "/admin/v2/brokers", "/admin/v2/brokers/configuration", "/admin/v2", "/",
        "/debug", "/admin/v2/proxy/configuration/maxTopicListInFlightHeapMemSizeMB/1", "/openapi.json/../metrics",
        "/health/../metrics", "/health;/metrics", "/health%2f..%2fmetrics", "//metrics", "/METRICS",
        "/ready?metrics"]  # fmt: skip
VERBS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]


class Requests:
    """One session of eve's, at one of the ports."""

    def __init__(self, stage: Stage, door: str, session: aiohttp.ClientSession) -> None:
        self._base = stage.admin_urls[door]
        self._door = door
        self._session = session
        self._ident = stage.victim.transaction

    async def ask(self, verb: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
        """(status, text). Raises AssertionError for an answer with what only the neighbour knows."""
        url = URL(self._base + path, encoded=True)
        said = {"Authorization": f"Bearer {EVE}", "Content-Type": "application/json", **headers}
        said = {name: value for name, value in said.items() if value}
        async with self._session.request(verb, url, data=data, headers=said, allow_redirects=False) as answer:
            text = await answer.text(errors="replace")
            what = f"{verb} {path} {data!r:.200} {headers}: {answer.status} {text[:400]}"
            assert not shows(text, dict(answer.headers)), what
            assert answer.status < 500 or answer.status == 501, what  # 501: a route of Apache Pulsar's alone
            return answer.status, text

    async def every_operation(self) -> None:
        """None is allowed on the neighbour's, whatever a header claims, and none without a token."""
        for number, row in enumerate(ROWS):
            if row.name == "get_metrics" and self._door == "proxy":  # its own, without any name
                continue
            known = {**ARGUMENTS, "ident": self._ident}
            arguments = {p.name: known[p.name] if p.required else p.default for p in row.parameters}
            arguments |= {name: known[name] for name in ("namespace",) if name in arguments}
            request = row.request(arguments)
            data = None if request.body is NO_BODY else json.dumps(request.body).encode()
            status, text = await self.ask(request.verb, request.path, data, LIES[number % len(LIES)])
            if row.name == "get_permissions":  # it names what it was asked for
                assert json.loads(text)["rights"] == [], text
            elif row.name in WITHOUT_NEED:
                assert "theirs" not in text or row.name == "get_description", (row.name, text)
            else:
                assert status == 403, (row.name, status, text)
                assert (await self.ask(request.verb, request.path, data, {"Authorization": ""}))[0] == 401, row.name

    async def every_classic_route(self) -> None:
        """As every_operation(), and a topic that was never made is answered as one that is there.

        A proxy has only the routes that the admin API has too.
        """
        none = (404, 405) if self._door == "proxy" else ()
        for number, (verb, route, need) in enumerate(CLASSIC):
            answers = []
            for name in (PARTS["topic"], "nothing"):
                path = route.format(**{**PARTS, "topic": name})
                data = b"1" if verb in ("PUT", "POST") else None
                status, text = await self.ask(verb, path, data, LIES[number % len(LIES)])
                answers.append((status, text.replace(name, PARTS["topic"])))
                assert status in (403, *none) or _says_nothing(need, status, text), (verb, path, status, text)
                stranger, _ = await self.ask(verb, path, data, {"Authorization": ""})
                assert stranger in (401, *none), (verb, path, stranger)
            assert answers[0] == answers[1], (verb, route, answers)

    async def at_random(self, seed: str, rounds: int) -> None:
        """Paths that mean another one to somebody, with any verb, body and header."""
        rng = random.Random(seed)
        for _ in range(rounds):
            path = rng.choice(BARE) if rng.random() < 0.2 else rng.choice(PREFIXES) + rng.choice(PATHS)
            verb = rng.choice(VERBS)
            data = None if verb in ("GET", "HEAD") else body(rng)
            status, text = await self.ask(verb, path, data, rng.choice(LIES))
            if _reaches_theirs(path):
                seen = verb == "GET" and (status, text) == (200, "[]")  # a list of what may be looked up
                assert status >= 400 or seen, (verb, path, data, status, text[:300])


def _says_nothing(need: str | None, status: int, text: str) -> bool:
    """Whether it is of no namespace, or a list without anything that may not be looked up."""
    return need is None or (need == "list_namespaces" and (status, text) == (200, "[]"))


def _reaches_theirs(path: str) -> bool:
    """Whether its parts name the neighbour's, as far as anything may read it so."""
    own = quote(MINE, safe="/") in path
    return not own and ("theirs" in unquote(path).lower() or "/brokers" in path or "configuration/" in path)
