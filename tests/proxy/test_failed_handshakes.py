"""Handshakes of TLS that fail, at every port of a broker and of a proxy, on both event loops: they are counted, logged
and slowed by the address that they come from; those of other addresses are not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.broker.admin import http as http_door
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.metrics.exposition import PageWriter, flat
from engine.broker.settings.attempts import DELAY_S_MIN, Attempts
from engine.broker.settings.handshakes import HandshakesInFlight
from engine.proxy.metrics import proxy_families
from engine.wire.url import parse_url
from tests.kit.handshakes import ELSEWHERE, HERE, LOOPS, SECRET, Stranger, run_on, until
from tests.proxy.proxies import Served

PROXIED = {"speaks_for_clients": True, "broker_token": "gate"}
MOST = 3  # failures of one address before it has to wait
WAYS = (
    "no certificate", "a certificate of another authority", "an expired certificate", "plain text", "garbage",
    "half a handshake, then the end", "half a handshake, then silence", "silence",
)  # fmt: skip


def _port_of(url: str) -> int:
    return parse_url(url.replace("http://", "engine://").replace("https://", "engine://"))[1]


PORTS: dict[str, Callable[[Served], int]] = {
    "the wire": lambda front: _port_of(front.direct_url),
    "the admin API": lambda front: _port_of(front.broker.admin_url),
    "a proxy": lambda front: _port_of(front.url),
    "a proxy's admin API": lambda front: _port_of(front.admin_url),
}


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return Stranger(tmp_path_factory.mktemp("certificates"))


def _counted(front: Served, port: str) -> tuple[float, ...]:
    """Handshakes that failed, and what was refused unchecked, as the metrics say it."""
    return _values(front, port, ("tls_handshake_failures_total", "authentication_unchecked_total"))


def _values(front: Served, port: str, names: tuple[str, ...]) -> tuple[float, ...]:
    if port.startswith("a proxy"):
        page, prefix = PageWriter("").page(flat(proxy_families(front.proxy))).decode(), "engine_proxy_"
    else:
        page, prefix = metrics_text(front.broker), "engine_"
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return tuple(float(values[prefix + name]) for name in names)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("way", WAYS)
def test_they_are_counted_logged_and_slowed(
    tmp_path: Path, stranger: Stranger, port: str, way: str, loop: str, monkeypatch, caplog
) -> None:
    timeout = 0.05 if "silence" in way else 60.0
    monkeypatch.setattr(http_door, "HANDSHAKE_S_MAX", timeout)
    monkeypatch.setattr(http_door, "CLOSE_S_MAX", 0.05)

    async def main() -> None:
        files = {"tls_cert": stranger.chain, "tls_key": stranger.chain, "tls_client_ca": stranger.client_ca}
        asked = {**files, "tls_client_required": True, "handshake_timeout": timeout}
        async with Served.started(tmp_path, asked, {**asked, **PROXIED}) as front:
            number = PORTS[port](front)
            attempts = (front.proxy if port.startswith("a proxy") else front.broker).doors.attempts
            attempts._now, attempts._pending_max = time, MOST
            for count in range(1, MOST + 1):
                assert not attempts.handshakes_crowded(HERE)
                await stranger.ways[way](number)
                await until(lambda count=count: _counted(front, port) == (count, 0))
            assert await stranger.is_refused(number)
            assert _counted(front, port) == (MOST, 1), "not even looked at"
            if timeout > 1:
                assert not await stranger.is_refused(number, ELSEWHERE)
                time.now += DELAY_S_MIN
                assert not await stranger.is_refused(number), "the first of them is due"
            assert attempts.failures == 0, "tokens are counted apart"
            assert attempts.crowded(HERE) is None

    time = Time()
    caplog.set_level(logging.DEBUG, "engine")
    run_on(loop, main())
    lines = [record.getMessage() for record in caplog.records if "TLS handshake" in record.getMessage()]
    counts = [line.partition(": ")[0] for line in lines]
    assert counts == [f"a TLS handshake with {HERE} failed, {n} in a row" for n in (1, 2)]
    assert SECRET[:8] not in caplog.text


@pytest.mark.parametrize("port", PORTS)
def test_those_under_way_are_bounded_and_shown(tmp_path: Path, stranger: Stranger, port: str) -> None:
    async def main() -> None:
        files = {"tls_cert": stranger.chain, "tls_key": stranger.chain, "tls_client_ca": stranger.client_ca}
        async with Served.started(tmp_path, files, {**files, **PROXIED}) as front:
            number = PORTS[port](front)
            attempts = (front.proxy if port.startswith("a proxy") else front.broker).doors.attempts
            attempts.in_flight = HandshakesInFlight(source_max=MOST)
            names = ("tls_handshakes_in_flight", "tls_handshakes_refused_total")
            held = [await asyncio.open_connection(HERE, number) for _ in range(MOST)]
            await until(lambda: _values(front, port, names) == (MOST, 0))
            assert await stranger.is_refused(number)
            assert not await stranger.is_refused(number, ELSEWHERE)
            await until(lambda: _values(front, port, names) == (MOST, 1))
            for _, writer in held:
                writer.close()
            await until(lambda: _values(front, port, names) == (0, 1))
            assert not await stranger.is_refused(number)

    run_on("asyncio", main())


def test_delays_and_forgetting_are_those_of_tokens() -> None:
    time = Time()
    made = Attempts(time, pending_max=4)
    for _ in range(4):
        assert not made.handshakes_crowded(HERE)
        made.handshake_failed(HERE, "plain text")
    assert made.handshakes_crowded(f"tcp://{HERE}:4000")
    assert not made.handshakes_crowded(ELSEWHERE)
    time.now += DELAY_S_MIN
    assert not made.handshakes_crowded(HERE)
    made.handshake_failed(HERE, "plain text")
    time.now += DELAY_S_MIN  # the second is due at twice the delay of the first
    assert not made.handshakes_crowded(HERE)
    assert (made.handshakes, made.unchecked, made.failures) == (5, 1, 0)
