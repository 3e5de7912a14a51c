"""What a client of Apache Pulsar has attached stays what it was allowed to be, and ends with its right."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from engine.pulsar.server_errors import AUTHORIZATION, TOPIC_NOT_FOUND
from tests.broker.test_web_tokens import jwks, token
from tests.kit.peer import until
from tests.pulsar.conftest import connect
from tests.pulsar.raw import Raw
from tests.pulsar.test_rights_matrix import (
    CASES,
    CLASSIC,
    EMPTY_LOOKUP,
    FLOW,
    NAMESPACE,
    SECOND,
    SEGMENT,
    Case,
    Client,
    Stage,
    producer,
    started,
    subscribe,
    with_roles,
)

SEEK, CLOSE = CASES["seek"][0], CASES["close_consumer"][0]


async def test_a_reader_learns_nothing_of_the_subscription_that_it_names(tmp_path: Path) -> None:
    async with with_roles(tmp_path) as stage:
        await stage.prepare()
        backlogs = []
        for token, case in (
            ("token-root", subscribe(CLASSIC, "victims")),
            ("token-prefixed", subscribe(CLASSIC, "victims", durable=False)),
        ):
            async with Raw(stage) as raw:
                client = Client(stage, raw, token)
                await client.greet()
                assert await client.ask(case, waits=True) is None
                assert await client.ask(CASES["consumer_stats"][0], waits=True) is None
                backlogs.append(client.answer.backlog)
        assert backlogs == [1, 0]


@pytest.mark.parametrize("together", [False, True], ids=["later", "together"])
async def test_a_consumer_is_not_taken_for_one_that_is_being_attached_under_its_id(
    tmp_path: Path, together: bool
) -> None:
    async with with_roles(tmp_path) as stage, Raw(stage) as theirs, Raw(stage) as rival, Raw(stage) as raw:
        await stage.prepare()
        root, slow, client = (
            Client(stage, theirs, "token-root"),
            *(Client(stage, one, "token-two") for one in (rival, raw)),
        )
        for one in (root, slow, client):
            await one.greet()
        for case in (subscribe(CLASSIC, "victims"), FLOW, CASES["ack"][0]):
            assert await root.ask(case, waits=True) is None
        await until(lambda: position(stage, "victims") == 1)
        # It answers no PING, so another consumer of its subscription is attached a while later.
        assert await slow.ask(subscribe(SECOND, "victims"), waits=True) is None
        own = subscribe(CLASSIC, "mine-s")
        if together:
            await raw.say_command("subscribe", **own.fields)
        else:
            assert await client.ask(own, waits=True) is None
        await raw.say_command("subscribe", **subscribe(SECOND, "victims").fields | {"request": 5})
        heard = [await raw.hear() for _ in range(1 + together)]
        assert [found.request for name, found in filter(None, heard) if name == "error"] == [5]
        assert await client.ask(SEEK, waits=True) is None  # of its own
        assert position(stage, "victims") == 1
        assert position(stage, "mine-s") == 0


async def test_a_consumer_that_is_closed_while_it_is_attached_leaves_its_id(tmp_path: Path) -> None:
    async with with_roles(tmp_path) as stage, Raw(stage) as rival, Raw(stage) as raw:
        await stage.prepare()
        slow, client = (Client(stage, one, "token-two") for one in (rival, raw))
        for one in (slow, client):
            await one.greet()
        assert await slow.ask(subscribe(SECOND, "s"), waits=True) is None
        await raw.say_command("subscribe", **subscribe(SECOND, "s").fields | {"request": 5})
        assert await client.ask(SEEK, waits=True) == TOPIC_NOT_FOUND  # it is not attached yet
        assert await client.ask(CLOSE, waits=True) is None
        assert await client.ask(subscribe(CLASSIC, "mine-s"), waits=True) is None
        await rival.heard("ping")
        await rival.say_command("pong")
        heard = await raw.hear()
        assert heard is not None
        assert (heard[0], heard[1].request, "closed before" in heard[1].message) == ("error", 5, True)
        assert await client.ask(SEEK, waits=True) is None
        assert stage.broker.rights.denials == 0


def position(stage: Stage, subscription: str) -> int:
    """Of a subscription of the classic topic."""
    hosted = next(one for one in stage.broker.segments if str(one.name.topic) == CLASSIC)
    found: int = hosted.subscriptions[subscription].cursor.position
    return found


async def test_a_revocation_reaches_what_is_attached(tmp_path: Path) -> None:
    async with with_roles(tmp_path) as stage, Raw(stage) as raw:
        await stage.prepare()
        client = Client(stage, raw, "token-admin")
        await client.greet()
        for case in (producer(CLASSIC), subscribe(SEGMENT, "s"), EMPTY_LOOKUP):
            assert await client.ask(case, waits=True) is None
        await stage.broker.admin.revoke(NAMESPACE, "admin")
        ended: dict[str, Any] = {}
        while len(ended) < 3 and (heard := await raw.hear()) is not None:
            name, found = heard
            assert name in ("close_producer", "close_consumer", "scalable_update", "ping")
            ended[name] = getattr(found, "error", None)
        assert ended["scalable_update"] == AUTHORIZATION
        for case in (producer(CLASSIC), subscribe(SEGMENT, "s"), EMPTY_LOOKUP, Case("lookup", {"topic": CLASSIC})):
            assert await client.ask(case, waits=True) == AUTHORIZATION
        assert await client.ask(CASES["send"][0], waits=False) is None
        assert await client.ask(CASES["seek"][0], waits=True) == TOPIC_NOT_FOUND


async def test_a_connection_ends_with_its_token_unless_a_newer_one_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text(jwks())
    async with started(tmp_path, None, jwt_keys=str(tmp_path / "keys"), superusers=["ann"]) as stage:
        now = time.time()
        async with Raw(stage) as raw, Raw(stage) as renewed:
            with monkeypatch.context() as patched:  # the broker's clock is shortly before the end of both
                patched.setattr(stage.broker.clock, "time_ms", lambda: int((now + 599) * 1000))
                for one in (raw, renewed):
                    assert await Client(stage, one, token(exp=now + 600)).greet() is None
                said = {"auth_method": "token", "auth_data": token(exp=now + 6000).encode()}
                await renewed.say_command("auth_response", response=said)
                await until(lambda: any((one.principal.expires or 0) > now + 5000 for one in stage.broker.connections))
            assert await raw.ends() == ["the token has expired"]
            await renewed.say_command("ping")
            await renewed.heard("pong")


async def test_a_seek_and_the_end_of_a_subscription_are_lines_of_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with with_roles(tmp_path, audit_log=str(path)) as stage, Raw(stage) as raw:
        await stage.prepare()
        before = len(path.read_text().splitlines())
        client = Client(stage, raw, "token-admin")
        await client.greet()
        for case in (subscribe(CLASSIC, "s"), SEEK):
            assert await client.ask(case, waits=True) is None
        for case in (subscribe(CLASSIC, "s"), CASES["unsubscribe"][0]):
            assert await client.ask(case, waits=True) is None
    facts = [json.loads(line) for line in path.read_text().splitlines()[before:]]
    assert {(f["role"], f["right"], f["subscription"], f["allowed"]) for f in facts} == {
        ("admin", "consume", "s", True)
    }
    assert [(f["request"], f.get("error")) for f in facts] == [
        ("SEEK_SUBSCRIPTION", None),
        ("DELETE_SUBSCRIPTION", None),
    ]


async def test_a_client_is_asked_for_a_newer_token_in_time(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(jwks())
    async with started(tmp_path, None, jwt_keys=str(tmp_path / "keys"), superusers=["ann"]) as stage:
        now = time.time()
        async with Raw(stage) as raw, Raw(stage) as older:
            for one, features in ((raw, {"auth_refresh": True}), (older, {})):
                auth = {"auth_method": "token", "auth_data": token(exp=now + 4).encode()}
                await one.say_command("connect", client_version="t", protocol=19, features=features, **auth)
                await one.heard("connected")
            challenge = (await raw.heard("auth_challenge")).challenge
            assert (challenge.auth_method, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
            said = {"auth_method": "token", "auth_data": token(exp=now + 6000).encode()}
            await raw.say_command("auth_response", response=said)
            assert await older.ends() == ["the token has expired"]  # without having been asked
            await raw.say_command("ping")
            await raw.heard("pong")


async def test_the_real_client_shows_a_newer_token_on_its_living_connection(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(jwks())
    async with started(tmp_path, None, jwt_keys=str(tmp_path / "keys"), superusers=["ann"]) as stage:
        now, shown = time.time(), list[float]()

        def newest() -> str:
            shown.append(time.time())
            return token(exp=now + (4 if len(shown) == 1 else 6000))

        url = f"pulsar://{stage.service_url.partition('://')[2]}"
        client = connect(url, authentication=pulsar.AuthenticationToken(newest))
        producer = await asyncio.to_thread(client.create_producer, CLASSIC)
        connections = set(stage.broker.connections)
        await until(lambda: all((one.principal.expires or 0) > now + 5000 for one in stage.broker.connections))
        await asyncio.to_thread(producer.send, b"after")
        assert set(stage.broker.connections) == connections
        await asyncio.to_thread(client.close)
