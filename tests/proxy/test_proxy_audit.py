"""The audit log of a proxy: what it denies itself, and limits that are changed there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.broker.metrics.exposition import exposition
from engine.broker.rights.token_file import line_of
from engine.errors import InvalidConfigurationError
from engine.proxy.config import ProxyConfig
from engine.proxy.metrics import proxy_families
from engine.proxy.server import Proxy
from engine.wire.commands import Command
from engine.wire.url import parse_url
from tests.kit.certificates import Authority
from tests.kit.peer import Peer, until
from tests.kit.raw_http import asked
from tests.proxy.proxies import Served
from tests.proxy.test_proxy_speaks import showing

GATE, ANN, ROOT, SHARED = "token-of-gate", "token-of-ann", "token-of-root", "token-of-all"
LIMIT = "/admin/v2/proxy/configuration/connections_max"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit-of-proxy"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def speaks(serve: Callable[..., Any], authority: Authority, tmp_path: Path, audit: Path) -> Callable[[], Any]:
    """A broker with roles, and a proxy that speaks for its clients."""
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("gate", GATE), ("ann", ANN), ("root", ROOT))))
    roles = {"roles_file": str(path), "superusers": ["root"], "audit_log": str(tmp_path / "audit-of-broker")}
    cert, key = authority.certify("127.0.0.1")
    own = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.file, "audit_log": str(audit)}
    return lambda: serve(roles, broker_token=GATE, speaks_for_clients=True, **own)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def who(line: dict[str, Any]) -> tuple[str, str, str]:
    assert "127.0.0.1" in line["peer"]
    return line["role"], line["kind"], line["proof"]


def denials(front: Served) -> int:
    text = exposition(proxy_families(front.proxy))
    (line,) = (line for line in text.splitlines() if line.startswith("engine_proxy_authorization_denials_total"))
    return int(float(line.split()[1]))


@pytest.mark.parametrize(
    ("settings", "is_of"),
    [({"auth_token": SHARED}, ("shared", "shared", "token")), ({}, ("unknown", "unknown", "token"))],
)
async def test_a_call_of_brokers(serve: Any, audit: Path, settings: dict[str, Any], is_of: tuple[str, ...]) -> None:
    async with serve(**settings, audit_log=str(audit)) as front:
        peer = await Peer.connect(front.broker, front.url, hello=False)
        await peer.hello(token=SHARED)
        peer.send(Command.BROKER_CALL, {"request_id": 1, "target": "admin", "method": "delete_topic"}, b"\x80")
        await until(peer.lost.done)
        (line,) = lines(audit)
        assert who(line) == is_of
        assert (line["request"], line["right"], line["allowed"]) == ("BROKER_CALL", None, False)
        assert line["reason"] == "BROKER_CALL is between brokers; a proxy does not forward it"
        assert denials(front) == 1


async def test_a_limit_that_is_set_and_unset(speaks: Any, authority: Authority, audit: Path, tmp_path: Path) -> None:
    async with speaks() as front, aiohttp.ClientSession() as session:
        await front.broker.admin.grant("*", "gate", ["proxy"])
        await front.broker.admin.grant("*", "olga", ["operate"])
        base = front.admin_url.replace("http:", "https:")

        async def ask(verb: str, path: str, token: str | None = None, certified: str | None = None) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with session.request(verb, base + path, ssl=showing(authority, certified), headers=headers) as answer:
                return answer.status

        assert await ask("POST", f"{LIMIT}/77", ROOT) == 204
        assert await ask("GET", LIMIT.rpartition("/")[0], ROOT) == 200  # it changes nothing
        assert await ask("DELETE", LIMIT, certified="olga") == 204
        assert await ask("POST", f"{LIMIT}/no", ROOT) == 400
        assert await ask("POST", f"{LIMIT}/1", ANN) == 403
        assert await ask("GET", "/metrics", ANN) == 403
        assert front.proxy.config.connections_max != 77
        assert denials(front) == 2
    found = lines(audit)
    assert [(*who(line), line["request"], line["allowed"], line.get("error")) for line in found] == [
        ("root", "role", "token", f"POST {LIMIT}/77", True, None),
        ("olga", "role", "certificate", f"DELETE {LIMIT}", True, None),
        ("root", "role", "token", f"POST {LIMIT}/no", True, "InvalidConfigurationError"),
        ("ann", "role", "token", f"POST {LIMIT}/1", False, None),
        ("ann", "role", "token", "GET /metrics", False, None),
    ]
    assert {(line["right"], line["resource"]) for line in found} == {("operate", "*")}
    text = json.dumps(found + lines(tmp_path / "audit-of-broker"))
    assert not [token for token in (GATE, ANN, ROOT) if token in text]


async def test_a_limit_that_is_set_by_the_proxys_own_token(serve: Any, audit: Path) -> None:
    async with serve(auth_token=SHARED, audit_log=str(audit)) as front, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {SHARED}"}
        async with session.post(f"{front.admin_url}{LIMIT}/77", headers=headers) as answer:
            assert answer.status == 204
    (line,) = lines(audit)
    assert (who(line), line["allowed"]) == (("shared", "shared", "token"), True)


async def test_a_request_of_a_web_page(serve: Any, audit: Path) -> None:
    async with serve(audit_log=str(audit)) as front:
        address = parse_url(front.admin_url.replace("http:", "engine:"))
        assert await asked(address, "POST", f"{LIMIT}/1", {"Host": "evil.example"}) == 403
        assert await asked(address, "POST", f"{LIMIT}/1", {"Host": "localhost", "Origin": "http://evil.example"}) == 403
        assert denials(front) == 2
    found = lines(audit)
    assert [(who(line), line["request"], line["allowed"]) for line in found] == [
        (("unknown", "unknown", "nothing"), f"POST {LIMIT}/1", False)
    ] * 2
    assert ["Host" in line["reason"] for line in found] == [True, True]
    assert "Origin" in found[1]["reason"]


async def test_denials_are_counted_without_a_log(serve: Any) -> None:
    async with serve() as front:
        address = parse_url(front.admin_url.replace("http:", "engine:"))
        assert await asked(address, "GET", "/metrics", {"Host": "evil.example"}) == 403
        assert denials(front) == 1


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = ProxyConfig(brokers=("engine://127.0.0.1:1",), audit_log=str(tmp_path / "missing" / "audit"))
    with pytest.raises(InvalidConfigurationError, match=r"audit_log .*missing/audit cannot be written"):
        Proxy(config)
