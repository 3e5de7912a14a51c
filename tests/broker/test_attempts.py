"""Failed authentications are slow, visible and bounded: alone, at both ports of a broker, and over its metrics."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from engine.broker.admin import http as http_door
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.settings import attempts
from engine.broker.settings.attempts import DELAY_S_MAX, DELAY_S_MIN, FORGET_S, Attempts, source_of
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthenticationError, TooManyRequestsError
from tests.kit.peer import Peer

TOKEN = "correct horse battery staple"
GUARDED = BrokerConfig(auth_token=TOKEN)
HERE = "tcp://10.0.0.1:5000"


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(made: Attempts, peer: str = HERE) -> float | None:
    """The delay of a wrong token; None: it was not checked."""
    refusal = made.refusal(GUARDED, "guess", peer)
    assert refusal is not None
    return None if isinstance(refusal.error, TooManyRequestsError) else refusal.delay


def test_delays_double_up_to_a_limit_and_are_forgotten() -> None:
    time = Time()
    made = Attempts(time, pending_max=100)
    delays = [failing(made) for _ in range(8)]
    assert delays == [min(DELAY_S_MAX, DELAY_S_MIN * 2**n) for n in range(8)]
    assert failing(made, "tcp://10.0.0.2:5000") == DELAY_S_MIN, "another address begins anew"
    time.now += FORGET_S + 1
    assert failing(made) == DELAY_S_MIN
    assert made.failures == 10


def test_a_right_token_is_not_delayed() -> None:
    made = Attempts(Time())
    failing(made)
    assert made.refusal(GUARDED, TOKEN, HERE) is None
    assert made.refusal(BrokerConfig(), None, HERE) is None


def test_without_a_token_nothing_is_guessed() -> None:
    """It is counted and logged, and neither delayed nor in the way of those that know the token."""
    made = Attempts(Time(), pending_max=3)
    for _ in range(10):
        refusal = made.refusal(GUARDED, None, HERE)
        assert refusal is not None
        assert isinstance(refusal.error, AuthenticationError)
        assert refusal.delay == 0.0
    assert made.refusal(GUARDED, TOKEN, HERE) is None
    assert made.failures == 10
    assert failing(made) == DELAY_S_MIN


def test_while_many_answers_are_pending_nothing_is_checked() -> None:
    """So the answers need not be waited for to learn as much as from them."""
    time = Time()
    made = Attempts(time, pending_max=3)
    for _ in range(3):
        assert failing(made) is not None
    assert failing(made) is None
    refusal = made.refusal(GUARDED, TOKEN, HERE)
    assert refusal is not None
    assert isinstance(refusal.error, TooManyRequestsError)
    assert made.refusal(GUARDED, TOKEN, "tcp://10.0.0.2:1") is None
    time.now += DELAY_S_MIN
    assert made.refusal(GUARDED, TOKEN, HERE) is None, "the first answer is due"
    assert (made.failures, made.unchecked) == (3, 2)


def test_guesses_without_waiting_come_to_a_few_a_second() -> None:
    """A hundred a second, for a hundred seconds."""
    time = Time()
    made = Attempts(time)
    for _ in range(10_000):
        failing(made)
        time.now += 0.01
    assert made.failures < 100 / DELAY_S_MAX * 32 + 100
    assert made.failures + made.unchecked == 10_000


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SOURCES_MAX", 10)
    made = Attempts(Time())
    for n in range(1000):
        failing(made, f"tcp://10.0.{n // 256}.{n % 256}:1")
    assert len(made._sources) == 10
    assert failing(made, "tcp://10.0.3.231:1") == 2 * DELAY_S_MIN, "the latest are remembered"


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("tcp://10.1.2.3:4000", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("tcp://[2001:db8::1]:4000", "2001:db8::/64"),
        ("2001:db8::ffff:2", "2001:db8::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("tcp://[::ffff:10.1.2.3]:80", "10.1.2.3"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "unknown"),
        ("memory", "memory"),
    ],
)
def test_sources(peer: str | None, source: str) -> None:
    assert source_of(peer) == source


def test_the_log_has_each_power_of_two_and_no_token(caplog: pytest.LogCaptureFixture) -> None:
    made = Attempts(Time(), pending_max=1000)
    for _ in range(100):
        failing(made)
    assert [record.count for record in caplog.records] == [1, 2, 4, 8, 16, 32, 64]  # type: ignore[attr-defined]
    assert "authentication from 10.0.0.1 failed, 64 in a row" in caplog.text
    assert TOKEN not in caplog.text
    assert "guess" not in caplog.text


# -- at the ports ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(start_broker, monkeypatch: pytest.MonkeyPatch):
    """A broker with a token, in which the second failure is answered in an hour, and the third one not checked."""
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 0.01)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 3600.0)
    monkeypatch.setattr(http_door, "CLOSE_S_MAX", 0.05)
    async with start_broker(auth_token=TOKEN, handshake_timeout=7200.0) as broker:
        broker.doors.attempts._pending_max = 1
        yield broker


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 3600.0)


async def test_on_the_wire(guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = guarded
    url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    peer = await Peer.connect(broker, url, hello=False)
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        await peer.hello(token="guess")
    slow(monkeypatch)
    waiting = await Peer.connect(broker, url, hello=False)
    answer = asyncio.create_task(waiting.hello(token="guess"))
    async with asyncio.timeout(20):
        while broker.doors.attempts.failures < 2:  # noqa: ASYNC110 - of a counter there is no event
            await asyncio.sleep(0)
    for token in ("guess", TOKEN, None):
        other = await Peer.connect(broker, url, hello=False)
        with pytest.raises(TooManyRequestsError):
            await other.hello(token=token)
    assert not answer.done()
    answer.cancel()
    await waiting.close()
    text = metrics_text(broker)
    assert "engine_authentication_failures_total 2.0\n" in text
    assert "engine_authentication_unchecked_total 3.0\n" in text


async def test_over_http(guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = guarded
    address = "http://{}:{}".format(*await broker.serve_admin("127.0.0.1", 0))
    path = address + "/admin/v2/scalable/public/default"

    async def status(session: aiohttp.ClientSession, token: str) -> int:
        async with session.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        assert await status(session, "guess") == 401
        assert await status(session, TOKEN) == 200
        slow(monkeypatch)
        waiting = asyncio.create_task(status(session, "guess"))
        async with asyncio.timeout(20):
            while broker.doors.attempts.failures < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert [await status(session, token) for token in ("guess", TOKEN)] == [429, 429]
        async with session.get(address + "/health") as answer:
            assert answer.status == 200
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_delayed_refusal_does_not_hold_up_the_end(guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    broker = guarded
    url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    peer = await Peer.connect(broker, url, hello=False)
    answer = asyncio.create_task(peer.hello(token="guess"))
    async with asyncio.timeout(20):
        while not broker.doors.attempts.failures:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await broker.close()
        with pytest.raises((ConnectionError, AuthenticationError)):
            await answer
