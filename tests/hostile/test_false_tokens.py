"""False JSON Web Tokens at each door: one answer for all, which tells nothing, counted; a right one passes beside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from engine.broker.metrics.catalogue import metrics_text
from engine.broker.settings import attempts
from engine.broker.settings.config import BrokerConfig
from engine.cli.main import main
from engine.client.admin.admin_http import HttpAdmin
from engine.client.client import AsyncClient
from engine.console.server import Console
from engine.errors import AuthenticationError, EngineError
from engine.pulsar.messages import FIELDS, Command, framed
from engine.wire.url import format_url, parse_url
from tests.hostile.false_tokens import AUDIENCE, MARK, false_tokens, key_set, refused_claims, right
from tests.hostile.ports import Ports, opened
from tests.kit.peer import Peer

ROLE, ABSENT = "operator", "nobody-yet"  # the first has all rights, the second is known nowhere
INVALID = "the token is invalid"
PASSED = ""


@dataclass
class House(Ports):
    console_url: str
    folder: Path
    capfd: pytest.CaptureFixture[str]


@contextlib.asynccontextmanager
async def house(folder: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[House]:
    (folder / "keys").write_text(key_set())
    config = BrokerConfig(jwt_keys=str(folder / "keys"), jwt_audience=AUDIENCE, superusers=[ROLE])
    async with opened(folder, config) as at:

        async def client(token: str | None) -> AsyncClient:
            return AsyncClient(at.url, token=token)

        console = Console(client, lambda: "session", at.url)
        try:
            console_url = format_url(*await console.listen("127.0.0.1", 0), "http")
            yield House(**vars(at), console_url=console_url, folder=folder, capfd=capfd)
        finally:
            await console.close()


# A door: what a token is answered there, PASSED where it is let in.
Door = Callable[[House, str], Awaitable[str]]


def wire(over: bool) -> Door:
    async def ask(at: House, token: str) -> str:
        peer = await Peer.connect(at.broker, at.over_url if over else at.url, hello=False)
        try:
            await peer.hello(token=token)
        except AuthenticationError as e:
            return str(e)
        finally:
            await peer.close()
        return PASSED

    return ask


async def wire_of_pulsar(at: House, token: str) -> str:
    reader, writer = await asyncio.open_connection(*parse_url(at.url))
    said = {"auth_method": "token", "auth_data": token.encode()}
    writer.write(framed("connect", client_version="eve", protocol=19, **said))
    async with asyncio.timeout(60):
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(size)
    writer.close()
    answer = Command.FromString(frame[4 : 4 + int.from_bytes(frame[:4], "big")])
    if FIELDS[answer.type] == "connected":
        return PASSED
    assert FIELDS[answer.type] == "error"
    assert answer.DESCRIPTOR is not None
    return str(answer.error.message)


def rest(over: bool, path: str = "/admin/v2/tenants") -> Door:
    async def ask(at: House, token: str) -> str:
        address = at.over_admin_url if over else at.admin_url
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(address + path) as answer:
            if answer.status == 200:
                return PASSED
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            body = await answer.json()
            assert body["code"] == AuthenticationError.code
            return str(body["reason"])

    return ask


async def console(at: House, token: str) -> str:
    async with (
        aiohttp.ClientSession(headers={"Origin": at.console_url}) as session,
        session.post(f"{at.console_url}/login", json={"token": token}) as answer,
    ):
        text = await answer.text()
        assert MARK not in text
        assert token not in text
        if answer.status == 200:
            return PASSED
        assert answer.status == 401, text
        assert "Set-Cookie" not in answer.headers
        return str((await answer.json())["reason"])


async def admin_client(at: House, token: str) -> str:
    admin = HttpAdmin(at.admin_url, token=token, timeout=60.0)
    try:
        await admin.list_tenants()
    except AuthenticationError as e:
        return str(e)
    finally:
        await admin.close()
    return PASSED


async def client(at: House, token: str) -> str:
    try:
        async with AsyncClient(at.url, token=token) as made:
            await made.admin.list_tenants()
    except AuthenticationError as e:
        return str(e)
    return PASSED


async def command_line(at: House, token: str) -> str:
    (at.folder / "token").write_text(token)
    at.capfd.readouterr()
    words = ["tenants", "list", "--url", at.url, "--token-file", str(at.folder / "token")]
    code = await asyncio.to_thread(main, words)
    out, err = at.capfd.readouterr()
    assert MARK not in out + err
    assert token not in out + err
    if code == 0:
        return PASSED
    assert not out
    return err.strip()


DOORS: dict[str, Door] = {
    "the wire": wire(False),
    "the wire, over a proxy": wire(True),
    "the wire of Apache Pulsar": wire_of_pulsar,
    "REST": rest(False),
    "REST, over a proxy": rest(True),
    "metrics": rest(False, "/metrics"),
    "the console": console,
    "the client": client,
    "the admin client": admin_client,
    "the command line": command_line,
}


IN_A_HEADER = ("REST", "REST, over a proxy", "metrics", "the admin client")  # which HTTP bounds
LARGE = ("large", "a large header")
SLOW = ("the console", "the command line")  # a client for each token: every fourth, since all doors ask one verifier


def tokens_for(door: str, role: str) -> dict[str, str]:
    """All where it is cheap; for a role that is nowhere, every fourth as well."""
    step = 4 if door in SLOW or role == ABSENT else 1
    return {
        name: token
        for number, (name, token) in enumerate(false_tokens(role).items())
        if number % step == 0 and not (door in IN_A_HEADER and name in LARGE)
    }


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer waits, however many were false."""
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 0.0)


@pytest.fixture
def usual() -> Iterator[None]:
    """What a command sets up in this process ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("door", DOORS)
async def test_each_is_refused_alike_and_counted(tmp_path, door, at_once, usual, caplog, capfd) -> None:
    async with house(tmp_path, capfd) as at:
        ask, found = DOORS[door], at.broker.doors.attempts
        assert await ask(at, right(ROLE)) == PASSED
        failures, answers = found.failures, {}
        for role in (ROLE, ABSENT):
            for name, token in tokens_for(door, role).items():
                answers[name, role] = await ask(at, token)
                failures += 1
                assert found.failures == failures, name
        (answer,) = set(answers.values())  # one for all, whatever they say, and whoever they name
        assert INVALID in answer
        assert await ask(at, right(ROLE)) == PASSED, "a right one beside them"
        assert f"engine_authentication_failures_total {failures:.1f}\n" in metrics_text(at.broker)
    assert MARK not in caplog.text
    assert not [one for one in caplog.records if one.exc_info], "none is an error of the server"


@pytest.mark.parametrize("door", DOORS)
async def test_claims_that_do_not_hold_are_refused_with_their_reason(tmp_path, door, at_once, usual, capfd) -> None:
    """To the holder of a token that a key of the cluster has signed; of the role it says nothing."""
    async with house(tmp_path, capfd) as at:
        ask, found = DOORS[door], at.broker.doors.attempts
        failures = found.failures
        those, others = refused_claims(ROLE), refused_claims(ABSENT)
        for name, (why, token) in those.items():
            answer = await ask(at, token)
            assert why in answer, name
            assert ROLE not in answer
            assert answer == await ask(at, others[name][1])
            failures += 2
            assert found.failures == failures, name
        assert await ask(at, right(ROLE)) == PASSED


async def test_the_cookie_of_the_console_is_for_its_own_pages_alone(tmp_path, capfd) -> None:
    """And it is no token. A page of another site gets none, also by a right one."""
    async with house(tmp_path, capfd) as at, aiohttp.ClientSession() as session:
        for origin, status in ((at.console_url, 200), ("https://elsewhere.invalid", 403)):
            said = {"json": {"token": right(ROLE)}, "headers": {"Origin": origin}}
            async with session.post(f"{at.console_url}/login", **said) as answer:
                assert answer.status == status
                given = answer.headers.getall("Set-Cookie", [])
            if status == 403:
                assert given == []
                continue
            (cookie,) = given
            assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
            assert not any(part in cookie for part in right(ROLE).split("."))


@pytest.mark.parametrize("name", LARGE)
async def test_one_that_is_larger_than_a_header_is_not_read(tmp_path, name, capfd) -> None:
    async with house(tmp_path, capfd) as at, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {false_tokens(ROLE)[name]}"}
        for address in (at.admin_url, at.over_admin_url):
            async with session.get(address + "/admin/v2/tenants", headers=headers) as answer:
                assert answer.status == 400
                assert MARK not in await answer.text()


async def test_false_ones_are_slowed_and_a_right_one_is_not(tmp_path, capfd) -> None:
    async with house(tmp_path, capfd) as at:
        delays: list[float] = []
        failed = at.broker.doors.attempts.failed

        def noted(*args: object, **fields: bool) -> float:
            delays.append(failed(*args, **fields))  # type: ignore[arg-type]
            return 0.0

        at.broker.doors.attempts.failed = noted  # type: ignore[method-assign, assignment]
        for token in list(false_tokens(ROLE).values())[:4]:
            assert await DOORS["the wire"](at, token) == INVALID
        assert delays == [0.1, 0.2, 0.4, 0.8]
        assert await DOORS["the wire"](at, right(ROLE)) == PASSED


def test_the_tokens_are_what_they_are_called() -> None:
    """A right one is believed by its library, and each false one is another text."""
    made = false_tokens(ROLE)
    assert len(set(made.values())) == len(made)
    assert right(ROLE) not in made.values()
    assert issubclass(AuthenticationError, EngineError)
