"""A proof that fails is counted, slowed and logged, whichever port it comes to: the ways in as one table."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from engine.broker.admin.http_checks import PROXY_TOKEN
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.rights.token_file import line_of
from engine.broker.settings import attempts
from engine.client.client import AsyncClient
from engine.console.server import Console
from engine.errors import AuthenticationError
from tests.kit.key_pairs import rsa_pair
from tests.kit.peer import Peer
from tests.proxy.proxies import Served

TOPICS = "/admin/v2/scalable/public/default"
GATE = "token-of-gate"
Try = Callable[[Served], Awaitable[None]]


def on_the_wire(direct: bool, **hello: Any) -> Try:
    async def attempt(front: Served) -> None:
        peer = await Peer.connect(front.broker, front.direct_url if direct else front.url, hello=False)
        with pytest.raises(AuthenticationError):
            await peer.hello(**{"token": "guess", **hello})

    return attempt


def over_http(direct: bool, path: str, **headers: str) -> Try:
    async def attempt(front: Served) -> None:
        address = front.broker.admin_url if direct else front.admin_url
        given = {"Authorization": "Bearer guess", **headers}
        async with aiohttp.ClientSession(headers=given) as session, session.get(address + path) as answer:
            assert answer.status == 401, await answer.text()

    return attempt


async def at_the_console(front: Served) -> None:
    """Its login asks the broker."""

    async def client(given: str | None) -> AsyncClient:
        return AsyncClient(front.direct_url, token=given)

    console = Console(client, lambda: "session", front.direct_url)
    try:
        host, port = await console.listen("127.0.0.1", 0)
        address = f"http://{host}:{port}"
        async with (
            aiohttp.ClientSession(headers={"Origin": address}) as session,
            session.post(f"{address}/login", json={"token": "guess"}) as answer,
        ):
            assert answer.status == 401, await answer.text()
    finally:
        await console.close()


def forged() -> str:
    """Signed by a key that the broker does not have."""
    return jwt.encode({"sub": "ann", "exp": 1 << 40}, rsa_pair(2056).private, "RS256")


WAYS: dict[str, Try] = {
    "the wire": on_the_wire(True),
    "the wire, a web token": on_the_wire(True, token=forged()),
    "the wire, a broker's name": on_the_wire(True, broker="engine://192.0.2.1:6650"),
    "the wire, a proxy's token": on_the_wire(True, token=None, proxy_token="guess"),
    "the wire, behind a proxy": on_the_wire(False),
    "REST": over_http(True, TOPICS),
    "metrics": over_http(True, "/metrics"),
    "REST, a proxy's token": over_http(True, TOPICS, **{PROXY_TOKEN: "Bearer guess"}),
    "REST, behind a proxy": over_http(False, TOPICS),
    "the console": at_the_console,
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_failure_is_counted_slowed_and_logged(
    serve: Any, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 0.001)  # so that the test does not wait
    (tmp_path / "roles").write_text(line_of("gate", GATE) + "\n")
    (tmp_path / "keys.pem").write_bytes(rsa_pair().public)
    proofs = {"roles_file": str(tmp_path / "roles"), "jwt_keys": str(tmp_path / "keys.pem"), "cluster_token": "c" * 32}
    async with serve(proofs, broker_token=GATE, speaks_for_clients=True, insecure=True) as front:
        await front.broker.admin.grant("*", "gate", ["proxy"])
        found = front.broker.doors.attempts
        delays: list[float] = []
        failed = found.failed

        def noted(*args: Any, **fields: Any) -> float:
            delays.append(failed(*args, **fields))
            return delays[-1]

        monkeypatch.setattr(found, "failed", noted)
        for count in (1, 2):
            with caplog.at_level(logging.WARNING):
                await WAYS[way](front)
            assert found.failures == count
        assert delays == [0.001, 0.002]  # the second answer waits twice as long
        assert "engine_authentication_failures_total 2.0\n" in metrics_text(front.broker)
    said = [record.getMessage() for record in caplog.records]
    for count in (1, 2):
        line = f"authentication from 127.0.0.1 failed, {count} in a row: "
        told = sum(one.startswith(line) for one in said)
        assert told == (2 if "behind a proxy" in way else 1), said  # a proxy counts what brokers refuse
