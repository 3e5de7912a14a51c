"""Whatever a broker answers arrives as the same typed error, in the blocking and in the asynchronous form."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import engine
import engine.broker.session.list_requests
from engine.client.admin.admin_http import HttpAdmin

KINDS: list[type[engine.EngineError]] = [
    engine.NotFoundError,
    engine.AlreadyExistsError,
    engine.AuthenticationError,
    engine.AuthorizationError,
    engine.TimeoutError,
    engine.AlreadyClosedError,
    engine.ProducerBusyError,
    engine.FencedError,
    engine.ConsumerBusyError,
    engine.ConnectError,
    engine.QueueFullError,
    engine.LimitExceededError,
    engine.MemoryLimitError,
    engine.MessageTooLargeError,
    engine.TransactionConflictError,
    engine.TransactionNotFoundError,
    engine.InvalidArgumentError,
    engine.InvalidConfigurationError,
    engine.CorruptionError,
    engine.UnknownOutcomeError,
    engine.UnsupportedError,
]
ANSWERED = [kind for kind in KINDS if kind is not engine.ConnectError]  # after which one asks again


def refuse(monkeypatch: pytest.MonkeyPatch, error: engine.EngineError) -> None:
    """Have the broker answer that to who lists topics."""

    async def answer(*request: Any) -> Any:
        raise error

    monkeypatch.setattr(engine.broker.session.list_requests, "_get", answer)


@pytest.mark.parametrize("kind", ANSWERED)
async def test_an_answer_is_the_error_itself(
    client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: type[engine.EngineError]
) -> None:
    refuse(monkeypatch, kind("what was wrong, and what would be right"))
    with pytest.raises(kind, match="what would be right") as caught:
        await client.list_topics()
    assert type(caught.value) is kind


@pytest.mark.parametrize("kind", ANSWERED)
def test_the_blocking_form_raises_the_same(
    blocking: engine.Client, monkeypatch: pytest.MonkeyPatch, kind: type[engine.EngineError]
) -> None:
    refuse(monkeypatch, kind("what was wrong, and what would be right"))
    with pytest.raises(kind, match="what would be right") as caught:
        blocking.list_topics()
    assert type(caught.value) is kind


def test_errors_are_of_the_built_in_kinds_too() -> None:
    assert all(issubclass(kind, engine.EngineError) for kind in KINDS)
    assert issubclass(engine.TimeoutError, builtins.TimeoutError)
    assert issubclass(engine.InvalidArgumentError, ValueError)
    assert issubclass(engine.InvalidConfigurationError, ValueError)
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, engine.AuthenticationError), (403, engine.AuthorizationError), (404, engine.NotFoundError)],
)
async def test_what_stands_before_the_admin_api_may_refuse(status: int, kind: type[engine.EngineError]) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text="a proxy says no")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, host="127.0.0.1") as server:
        admin = HttpAdmin(str(server.make_url("/")), token=None, timeout=10.0)
        try:
            with pytest.raises(kind):
                await admin.delete_topic("t")
        finally:
            await admin.close()
