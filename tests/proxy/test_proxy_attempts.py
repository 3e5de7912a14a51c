"""Failed authentications at a proxy: its own, and those that brokers refuse."""

from __future__ import annotations

import aiohttp
import pytest

from engine.broker.settings import attempts
from engine.errors import AuthenticationError, TooManyRequestsError
from engine.proxy.metrics import proxy_metrics_text
from tests.kit.peer import Peer
from tests.proxy.proxies import Served

TOPICS = "/admin/v2/scalable/public/default"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a broker and a proxy alike the answer to a failure is due, and a further one within an hour is pending."""
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 0.001)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 0.001)


async def hello(front: Served, token: str) -> None:
    peer = await Peer.connect(front.broker, front.url, hello=False)
    await peer.hello(token=token)


@pytest.mark.parametrize("own", [True, False], ids=["its own token", "the brokers' token"])
async def test_failures_are_counted_by_address_and_bounded(serve, monkeypatch, own: bool) -> None:
    settings = {"auth_token": "ours", "broker_token": "theirs"} if own else {"insecure": True}
    right = "ours" if own else "theirs"
    async with serve({"auth_token": "theirs"}, **settings) as front, aiohttp.ClientSession() as session:
        with pytest.raises(AuthenticationError):
            await hello(front, "guess")
        await hello(front, right)

        async def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(front.admin_url + TOPICS, headers=headers) as answer:
                return answer.status

        assert [await status(token) for token in ("guess", right)] == [401, 200]
        assert "engine_proxy_authentication_failures_total 2.0\n" in proxy_metrics_text(front.proxy)
        assert front.broker.doors.attempts.failures == (0 if own else 2)
        found = front.proxy.doors.attempts
        found._now = lambda: 0.0  # from here on no answer is ever due
        found._sources.clear()
        found._pending_max = 1
        with pytest.raises(AuthenticationError):
            await hello(front, "guess")
        with pytest.raises(TooManyRequestsError):
            await hello(front, right)
        assert await status(right) == 429
        assert "engine_proxy_authentication_unchecked_total 2.0\n" in proxy_metrics_text(front.proxy)
