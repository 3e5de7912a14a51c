"""A console with rights of its own shows and does nothing for what has not shown the key of its link."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.settings import attempts
from engine.broker.settings.attempts import PENDING_MAX
from engine.client.client import AsyncClient
from engine.console.server import SESSIONS_MAX, Console
from tests.cli.cli_server import PROGRAM
from tests.console.test_pages import NAME, ORDERS, PAGES
from tests.kit.programs import environment

KEY = "the-key-of-the-link"
OPEN = ("/login", "/assets/console.js", "/assets/console.css")
ACT = {"topic": ORDERS, "segment": 0}


@asynccontextmanager
async def console(data: Path) -> AsyncIterator[str]:
    """Its URL; it acts as the owner of a directory."""

    async def client(token: str | None) -> AsyncClient:
        return await engine.open_async(data)

    numbers = itertools.count()
    made = Console(client, lambda: f"session-{next(numbers)}", "data", KEY)
    host, port = await made.listen("127.0.0.1", 0)
    try:
        async with engine.open_async(data) as other:  # the same engine, in this process
            await other.admin.create_topic(ORDERS)
        yield f"http://{host}:{port}"
    finally:
        await made.close()


def visitor(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True))  # of an address


async def got(http: aiohttp.ClientSession, path: str) -> tuple[int, str | None]:
    async with http.get(path, allow_redirects=False) as answer:
        return answer.status, answer.headers.get("Location")


def _started(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def _said(process: subprocess.Popen[str]) -> str:
    """What it says until it serves."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "console on" in line:
            break
    return said


async def posted(http: aiohttp.ClientSession, path: str, body: Any) -> int:
    async with http.post(path, json=body) as answer:
        return answer.status


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong keys are answered soon."""
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 0.001)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 0.001)


async def test_wrong_keys_are_logged_and_answered_late_and_the_right_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "DELAY_S_MIN", 60.0)  # no answer comes while this test lasts
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 60.0)
    async with console(tmp_path / "data") as url, visitor(url) as http:
        guesses = [asyncio.create_task(posted(http, "/login", {"token": f"x{n}"})) for n in range(PENDING_MAX + 1)]
        answered, waiting = await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        assert [guess.result() for guess in answered] == [429], "too many of them wait"
        async with visitor(url) as owner:
            assert await posted(owner, "/login", {"token": KEY}) == 200
        assert not any(guess.done() for guess in waiting)
        for guess in waiting:
            guess.cancel()
        await asyncio.wait(waiting)
    assert any("not that of the link" in record.getMessage() for record in caplog.records)
    assert KEY not in caplog.text


@pytest.mark.usefixtures("prompt")
async def test_without_the_key_nothing_is_shown_or_done(tmp_path: Path) -> None:
    async with console(tmp_path / "data") as url, visitor(url) as http:
        for path in PAGES:
            assert await got(http, path) == ((200, None) if path in OPEN else (303, "/login")), path
        for wrong in ("", "x", KEY[:-1], "%ff", "\udcff", f"{KEY}{KEY}"):
            assert await got(http, f"/?key={wrong.encode(errors='ignore').decode()}") == (303, "/login"), wrong
            assert await posted(http, "/login", {"token": wrong}) == (401 if wrong else 400)
        assert await posted(http, "/acts/split", ACT) == 401
        assert not len(http.cookie_jar)
        http.cookie_jar.update_cookies({"engine-console": "session-0"})
        assert await got(http, f"/topic?{NAME}") == (303, "/login")


@pytest.mark.parametrize("way", ["link", "login"])
async def test_with_the_key_a_browser_is_let_in_until_it_logs_out(tmp_path: Path, way: str) -> None:
    async with console(tmp_path / "data") as url, visitor(url) as http, visitor(url) as another:
        if way == "link":
            async with http.get(f"/?key={KEY}", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/")
                assert {"HttpOnly", "SameSite=Strict"} <= set(answer.headers["Set-Cookie"].split("; "))
        else:
            assert await posted(http, "/login", {"token": f" {KEY}\n"}) == 200
        assert await got(http, f"/topic?{NAME}") == (200, None)
        assert await posted(http, "/acts/split", ACT) == 200
        assert await got(another, "/") == (303, "/login")
        assert await got(another, f"/?key={KEY}") == (303, "/"), "the link serves another browser, too"
        assert await posted(http, "/logout", {}) == 200
        assert await got(http, "/") == (303, "/login")
        assert await got(another, "/") == (200, None)


async def test_the_oldest_of_many_sessions_ends(tmp_path: Path) -> None:
    async with console(tmp_path / "data") as url, visitor(url) as first, visitor(url) as others:
        assert await got(first, f"/?key={KEY}") == (303, "/")
        for _ in range(SESSIONS_MAX):
            assert await got(first, "/topics") == (200, None)
            assert await got(others, f"/?key={KEY}") == (303, "/")
        assert await got(first, "/topics") == (303, "/login")
        assert await got(others, "/topics") == (200, None)


@pytest.mark.parametrize("how", ["data", "token", "token in the environment", "unix", "open"])
async def test_the_command_prints_a_link_where_it_has_rights_of_its_own(tmp_path: Path, how: str) -> None:
    (tmp_path / "token").write_text("a-token-of-the-operators-42")
    async with engine.open_async(
        tmp_path / "served", listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False
    ) as broker:
        more, changes = {
            "data": (["--data", str(tmp_path / "data")], {}),
            "token": (["--url", broker.service_url, "--token-file", str(tmp_path / "token")], {}),
            "token in the environment": (["--url", broker.service_url], {"ENGINE_TOKEN": "x"}),
            "unix": (["--url", f"engine+unix://{tmp_path}/none.sock"], {}),
            "open": (["--url", broker.service_url], {}),
        }[how]
        command = [*PROGRAM, "console", "--listen", "127.0.0.1:0", *more]
        process = _started(command, environment(**changes))
        try:
            said = await asyncio.to_thread(_said, process)
            link = re.search(r"open (http://\S+)/\?key=(\S{40,})", said)
            at = re.search(r"console on (http://\S+)", said)
            assert at is not None
            async with visitor(at[1]) as http:
                if how == "open":
                    assert link is None
                    assert await got(http, "/") == (200, None)
                else:
                    assert link is not None
                    assert await got(http, "/") == (303, "/login")
                    assert await got(http, f"/?key={link[2]}") == (303, "/")
        finally:
            process.terminate()
            process.communicate(timeout=30)
