"""No web page commands a broker: Host, Origin, Sec-Fetch-Site, and the media type of bodies."""

from __future__ import annotations

import logging

import pytest

from engine.broker.admin.http_checks import hosts_of
from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidConfigurationError
from engine.limits import BODY_SIZE_MAX
from tests.kit.raw_http import Raw, asked

BASE = "/admin/v2/scalable/public/default"
SEEK = f"{BASE}/orders/subscriptions/s/seek"
CLEAR = f"{BASE}/orders/subscriptions/s/clear-backlog"
JSON = {"Content-Type": "application/json"}

Address = tuple[str, int]


@pytest.fixture
async def address(broker) -> Address:
    await broker.admin.create_topic("orders")
    await broker.admin.create_subscription("orders", "s")
    return await broker.serve_admin("127.0.0.1", 0)


async def topics(broker) -> list[str]:
    return await broker.admin.list_topics("public/default")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{}", "127.0.0.1.evil.example", "localhost.evil.example:{}",
             "10.9.8.7.evil.example:{}", "[::2].evil.example:{}", "localhost@evil.example", "", "[",
             "evil.example#127.0.0.1", "2130706433:{}", "*"]
)  # fmt: skip
async def test_requests_for_another_host_are_refused(broker, address: Address, host: str) -> None:
    said = {"Host": host.format(address[1])}
    for method, target in (("GET", BASE), ("DELETE", f"{BASE}/orders"), ("POST", CLEAR), ("GET", "/metrics")):
        assert await asked(address, method, target, said) in (400, 403)
    assert await topics(broker) == ["topic://public/default/orders"]
    assert await asked(address, "GET", "/health", {"Host": "a-balancer"}) == 200, "a health check may use any name"


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "127.0.0.1", "localhost:{}", "LOCALHOST", "[::1]:{}", "127.3.4.5",
                                  "10.9.8.7:80", "[fd00::2]:{}"])  # fmt: skip
async def test_requests_for_an_address_are_answered(address: Address, host: str) -> None:
    """Of any kind: behind a port mapping it is none of the broker's, and no page's owner can have it resolve to one."""
    assert await asked(address, "GET", BASE, {"Host": host.format(address[1])}) == 200


async def test_a_request_has_one_host(address: Address) -> None:
    assert await asked(address, "GET", BASE, {}) == 400
    assert await asked(address, "GET", BASE, {"Host": "localhost", "host": "evil.example"}) == 400
    async with Raw.connected(address) as raw:
        raw.writer.write(f"GET {BASE} HTTP/1.0\r\n\r\n".encode())
        assert await raw.status() == 200, "HTTP/1.0 had none"


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"admin_hosts": ["engine.example"]}, "engine.example:80", 200),
        ({"admin_hosts": "a.example, engine.example"}, "Engine.Example.", 200),
        ({"admin_hosts": ["engine.example"]}, "evil.engine.example", 403),
        ({"admin_hosts": ["*"]}, "evil.example", 200),
        ({"admin_url": "http://engine.example:9000"}, "engine.example", 200),
        ({"service_url": "engine://engine.example:6650"}, "engine.example:8080", 200),
    ],
)
async def test_names_of_the_broker_are_configured(start_broker, settings: dict, host: str, status: int) -> None:
    async with start_broker(**settings) as broker:
        address = await broker.serve_admin("127.0.0.1", 0)
        assert await asked(address, "GET", BASE, {"Host": host}) == status


@pytest.mark.parametrize("hosts", [["a:80"], ["http://a"], [""], [3], 3, ["a b"], ["ü"]])
def test_names_that_cannot_be_configured(hosts: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="admin_hosts"):
        BrokerConfig(admin_hosts=hosts)  # type: ignore[arg-type]


def test_names_come_from_the_environment_too() -> None:
    config = BrokerConfig.load(environment={"ENGINE_ADMIN_HOSTS": "a.example,b.example"})
    assert hosts_of(config.admin_hosts, config.admin_url) == {"a.example", "b.example"}


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://[/"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://{}"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
async def test_requests_of_pages_of_other_sites_are_refused(broker, address: Address, page: dict[str, str]) -> None:
    host = f"{address[0]}:{address[1]}"
    said = {"Host": host, **{name: value.format(host) for name, value in page.items()}}
    for method, target in (("GET", BASE), ("POST", CLEAR), ("DELETE", f"{BASE}/orders"), ("OPTIONS", BASE)):
        assert await asked(address, method, target, said) == 403
    assert await asked(address, "PUT", f"{BASE}/new", {**said, **JSON}, b"{}") == 403
    assert await topics(broker) == ["topic://public/default/orders"]


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_requests_of_a_page_of_its_own_are_answered(broker, address: Address, site: str) -> None:
    host = f"{address[0]}:{address[1]}"
    said = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": site, **JSON}
    assert await asked(address, "PUT", f"{BASE}/new", said, b"{}") == 204


async def test_no_page_of_another_site_reads_an_answer_and_no_cookie_is_set(address: Address) -> None:
    """No CORS, also not to what asks in advance; and nothing that a browser would send by itself later."""
    host = f"{address[0]}:{address[1]}"
    mine = {"Host": host, "Origin": f"http://{host}", "Connection": "close"}
    advance = {**mine, "Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "authorization"}
    others = {**mine, "Origin": "http://evil.example"}
    for method, target, said in (
        ("GET", BASE, mine), ("GET", "/health", mine), ("GET", "/", mine), ("GET", "/metrics", mine),
        ("OPTIONS", BASE, advance), ("GET", BASE, others), ("GET", "/missing", mine),
    ):  # fmt: skip
        async with Raw.connected(address) as raw:
            raw.say(method, target, said)
            head = (await raw.rest()).partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 "), (method, target)
        assert b"access-control" not in head, (method, target)
        assert b"set-cookie" not in head, (method, target)


async def test_a_body_that_is_too_large_is_refused(broker, address: Address) -> None:
    body = b"{" + b" " * BODY_SIZE_MAX + b"}"
    assert await asked(address, "PUT", f"{BASE}/new", {"Host": "localhost", **JSON}, body) == 413
    assert await topics(broker) == ["topic://public/default/orders"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain; a=application/json", "application/x-www-form-urlencoded", "multipart/form-data",
             None]
)  # fmt: skip
async def test_bodies_that_are_not_called_json_are_refused(broker, address: Address, kind: str | None) -> None:
    said = {"Host": "localhost", **({} if kind is None else {"Content-Type": kind})}
    for method, target, body in (
        ("POST", SEEK, b'{"when": "latest"}'),
        ("PUT", f"{BASE}/new", b"{}"),
        ("POST", CLEAR, b" "),
    ):
        assert await asked(address, method, target, said, body) == 415
    assert await topics(broker) == ["topic://public/default/orders"]


async def test_a_body_that_cannot_be_decoded_is_no_traceback(address: Address, caplog) -> None:
    said = {"Host": "localhost", **JSON, "Content-Encoding": "gzip", "Content-Length": "2"}
    async with Raw.connected(address) as raw:
        raw.say("PUT", f"{BASE}/new", said, b"{}")
        assert b"400 Bad Request" in await raw.rest()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_bodies_that_are_called_json_are_taken(address: Address) -> None:
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        said = {"Host": "localhost", "Content-Type": kind}
        assert await asked(address, "POST", SEEK, said, b'{"when": "latest"}') == 204
    assert await asked(address, "POST", CLEAR, {"Host": "localhost"}) == 204, "without a body nothing has to be said"
