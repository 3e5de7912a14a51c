"""The pages over plain HTTP: of an engine that the console embeds, of a broker that is older, and of what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.settings.attempts import PENDING_MAX
from engine.client.client import AsyncClient
from engine.console.server import LOGINS_MAX, Console
from engine.console.source import Source
from engine.errors import AuthenticationError, InvalidArgumentError
from engine.model.admin_methods import AdminMethods
from tests.kit.peer import until

ORDERS = "topic://public/default/orders"
NAME = "name=topic%3A%2F%2Fpublic%2Fdefault%2Forders"
PAGES = {
    "/": "Overview", "/topics": "orders", f"/topic?{NAME}": "Segments", f"/messages?{NAME}": "an espresso",
    "/letters": "orders-DLQ", f"/letters?{NAME}-DLQ": "None waits", "/namespaces": "public/default",
    "/namespace?name=public%2Fdefault": "retention_time_s", "/transactions": "None.", "/brokers": "read_cache",
    "/login": "Token", "/assets/console.js": "keydown", "/assets/console.css": "color-scheme",
}  # fmt: skip


async def test_every_page_shows_an_engine_that_is_embedded(tmp_path: Path) -> None:
    async def client(token: str | None) -> AsyncClient:
        return await engine.open_async(tmp_path / "data")

    console = Console(client, lambda: "session", "data")
    host, port = await console.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
            async with engine.open_async(tmp_path / "data") as other:  # the same engine, in this process
                await other.admin.create_topic(ORDERS)
                await other.admin.create_topic(f"{ORDERS}-DLQ")
                async with await other.producer(ORDERS) as producer:
                    await producer.send(b"an espresso", key="table-7")
            for path, text in PAGES.items():
                async with http.get(path) as answer:
                    said = await answer.text()
                    assert (answer.status, text in said) == (200, True), (path, said)
            wrong = {f"/topic?{NAME}-none": 404, "/topic?name=": 400, "/topics?sort=colour": 400, "/topics?page=x": 400}
            wrong |= {"/nothing": 404, "/assets/nothing": 404, f"/messages?{NAME}-none": 404}
            for path, status in wrong.items():
                async with http.get(path) as answer:
                    assert answer.status == status, path
            acts: Mapping[str, tuple[Any, int]] = {
                "split": ({"topic": ORDERS}, 400), "fly": ({}, 404), "merge": ([], 400),
                "redrive": ({"topic": f"{ORDERS}-DLQ", "letters": ["x"]}, 400),
            }  # fmt: skip
            for act, (body, status) in acts.items():
                async with http.post(f"/acts/{act}", json=body) as answer:
                    assert answer.status == status, act
                    assert (await answer.json())["reason"]
            async with http.post("/acts/redrive", json={"topic": f"{ORDERS}-DLQ", "letters": "all"}) as answer:
                assert await answer.json() == {"said": "0 letters sent back"}
    finally:
        await console.close()


class _Older(AdminMethods):
    """The admin API of a broker that does not know the new questions."""

    async def _call(self, operation: Any, arguments: Any) -> Any:
        raise InvalidArgumentError(f"{operation.http}: Not Found")


class _Client:
    admin = _Older()


async def test_an_older_broker_leaves_all_buttons_and_no_time_line() -> None:
    source = Source(_Client())  # type: ignore[arg-type]
    may = await source.may("public/default/orders")
    assert may.act("split", {"topic": ORDERS, "segment": 0})
    assert may.role == ""
    assert await source.history(ORDERS) == []
    with pytest.raises(InvalidArgumentError):
        await source.limits()


async def test_pages_that_look_together_share_their_answers() -> None:
    asked = []

    class Counted(AdminMethods):
        async def _call(self, operation: Any, arguments: Any) -> Any:
            asked.append(operation.name)
            await asyncio.sleep(0)
            return "" if operation.name == "get_metrics" else []

    class Client:
        admin = Counted()

    source = Source(Client())  # type: ignore[arg-type]
    await asyncio.gather(*(source.topics() for _ in range(50)), *(source.namespaces() for _ in range(50)))
    assert sorted(asked) == ["get_metrics", "list_namespaces"]
    assert source.asked == 2


class _Waiting:
    """A client whose broker has not answered yet."""

    def __init__(self, answers: asyncio.Future[None]) -> None:
        self._answers = answers
        self.closed = False

    async def connect(self) -> None:
        await asyncio.shield(self._answers)

    async def close(self) -> None:
        self.closed = True


async def test_logins_that_a_broker_has_not_answered_are_few() -> None:
    """A broker that answers false tokens late has fewer to answer than those at which it shuts the address out."""
    assert LOGINS_MAX < PENDING_MAX
    answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    made: list[_Waiting] = []

    async def client(token: str | None) -> Any:
        made.append(_Waiting(answers))
        return made[-1]

    console = Console(client, lambda: "session", "data")
    host, port = await console.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:

            async def login() -> int:
                async with http.post("/login", json={"token": "guess"}) as answer:
                    return answer.status

            guesses = [asyncio.create_task(login()) for _ in range(LOGINS_MAX)]
            await until(lambda: len(made) == 1 + LOGINS_MAX)
            assert await login() == 429
            assert len(made) == 1 + LOGINS_MAX, "the broker was not asked"
            answers.set_exception(AuthenticationError("the token is invalid"))
            assert await asyncio.gather(*guesses) == [401] * LOGINS_MAX
            assert all(one.closed for one in made[1:])
            assert await login() == 401, "and now it is asked again"
    finally:
        await console.close()
