"""A role with a weak right in its own namespace, at every port, against the namespace of another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest

import engine
from engine.broker.rights.table import COMMANDS as RULES
from engine.errors import AuthorizationError, EngineError
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.pulsar.messages import FIELDS
from engine.pulsar.session import Session
from engine.testing.maps import encode_bytes
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Command
from tests.hostile.frames import Frames
from tests.hostile.pulsar_frames import ASKING, CLASSIC, COMMANDS, OWN_CLASSIC, QUIET, SECRET_CLASSIC, PulsarFrames
from tests.hostile.requests import ARGUMENTS, WITHOUT_NEED, Requests
from tests.hostile.stage import (
    EVE,
    MINE,
    PRODUCER,
    QUEUE,
    THEIRS,
    TOPIC,
    WEAKEST,
    Stage,
    eve,
    nothing_changes,
    shows,
    staged,
)

DOORS = ("broker", "proxy")


async def attack_frames(stage: Stage, seed: int, rounds: int) -> None:
    """Over both doors at the same time."""
    await asyncio.gather(*(Frames(stage, door, seed).attack(rounds) for door in DOORS))


async def attack_requests(stage: Stage, seed: int, rounds: int) -> None:
    async with aiohttp.ClientSession() as session:
        for door in DOORS:
            requests = Requests(stage, door, session)
            await requests.every_operation()
            await requests.every_classic_route()
            await requests.at_random(f"{seed} {door}", rounds)


async def attack_pulsar_frames(stage: Stage, seed: int, rounds: int) -> None:
    """At the broker alone: a proxy does not speak this protocol."""
    frames = PulsarFrames(stage, seed)
    await frames.attack(rounds)
    assert frames.refused > rounds // 20


@contextlib.asynccontextmanager
async def with_classic_topics(folder: Path, rights: tuple[str, ...]) -> AsyncIterator[Stage]:
    """The stage, and topics of Apache Pulsar's classic clients, of the neighbour and of eve."""
    async with staged(folder, rights) as stage:
        for topic in (CLASSIC, SECRET_CLASSIC, OWN_CLASSIC):
            await stage.broker.admin.create_topic(topic)
        async with nothing_changes(stage):
            yield stage


@pytest.mark.parametrize("rights", [WEAKEST, ("admin",)], ids=" ".join)
async def test_frames_of_apache_pulsar_do_nothing_to_a_neighbour(tmp_path, rights):
    async with with_classic_topics(tmp_path, rights) as stage:
        await attack_pulsar_frames(stage, 1, 1_000)


async def test_a_hole_is_found_by_frames_of_apache_pulsar(tmp_path):
    async with staged(tmp_path) as stage:
        _Open(stage)
        with pytest.raises(AssertionError):
            await attack_pulsar_frames(stage, 1, 500)


def test_every_command_of_apache_pulsar_is_among_the_frames():
    """But for those of the handshake, of keep-alive and of a newer token, a wrong one of which slows eve down."""
    assert set(FIELDS.values()) == {*COMMANDS, *QUIET}
    handled = Session(*(MagicMock() for _ in range(4)))._handlers
    assert set(handled) - set(QUIET) <= set(ASKING)


@pytest.mark.parametrize("rights", [WEAKEST, ("admin",)], ids=" ".join)
async def test_frames_do_nothing_to_a_neighbour(tmp_path, rights):
    async with staged(tmp_path, rights) as stage, nothing_changes(stage):
        await attack_frames(stage, 1, 300)


@pytest.mark.parametrize("rights", [WEAKEST, ("admin",)], ids=" ".join)
async def test_requests_do_nothing_to_a_neighbour(tmp_path, rights):
    async with with_classic_topics(tmp_path, rights) as stage:
        await attack_requests(stage, 1, 150)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "rights", [WEAKEST, ("produce",), ("consume",), ("produce", "consume"), ("admin",)], ids=" ".join
)
async def test_a_neighbour_for_long(tmp_path, rights):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    async with staged(tmp_path, rights) as stage, nothing_changes(stage):
        await attack_frames(stage, seed, 30_000)
        await attack_pulsar_frames(stage, seed, 50_000)
        await attack_requests(stage, seed, 5_000)


class _Open:
    """A check of rights with a hole: it never refuses what lies in the neighbour's namespace."""

    def __init__(self, stage: Stage) -> None:
        rights = stage.broker.rights
        whole = rights.check

        def check(principal: Any, need: Any, request: str, peer: str | None) -> None:
            if not need.resource.startswith("theirs"):
                whole(principal, need, request, peer)

        rights.check = check  # type: ignore[method-assign]


async def test_a_hole_is_found(tmp_path):
    """Otherwise the attacks above would show nothing."""
    async with staged(tmp_path) as stage:
        _Open(stage)
        for attack in (attack_frames, attack_requests):
            with pytest.raises(AssertionError):
                await attack(stage, 1, 100)


async def test_a_refusal_does_not_tell_whether_something_is_there(tmp_path):
    """Each request for the neighbour's topic is answered as the same one for a topic that was never made."""
    async with staged(tmp_path) as stage, aiohttp.ClientSession() as session:
        for door in DOORS:
            peer = await eve(stage, door)
            for command, fields in _frames(stage):
                answers = [await _refusal(peer, command, fields, name) for name in ("orders", "nothing")]
                assert answers[0] == answers[1], (command, answers)
            requests = Requests(stage, door, session)
            for row in ROWS:
                if row.name not in WITHOUT_NEED and any(p.name in ("topic", "segment") for p in row.parameters):
                    request = row.request({p.name: ARGUMENTS.get(p.name, p.default) for p in row.parameters})
                    paths = request.path, request.path.replace("orders", "nothing")
                    found = [await requests.ask(request.verb, path, None, {}) for path in paths]
                    assert found[0] == (found[1][0], found[1][1].replace("nothing", "orders")), (row.name, found)


def _frames(stage: Stage) -> list[tuple[Command, dict[str, Any]]]:
    """Requests that name the neighbour's topic, or one of its segments."""
    topic = {"topic": TOPIC}
    named = {"consumer_name": "c", "initial_position": "earliest"}
    segment = {"topic": stage.victim.segment}
    return [
        (Command.SCALABLE_TOPIC_LOOKUP, {**topic, "session_id": 1, "create": False}),
        (Command.SCALABLE_TOPIC_LOOKUP, {**topic, "session_id": 1, "create": True}),
        (Command.SCALABLE_TOPIC_SUBSCRIBE,
         {**topic, **named, "consumer_id": 1, "subscription": QUEUE, "instance": "i", "kind": "stream"}),
        (Command.SEEK_SUBSCRIPTION, {**topic, "subscription": QUEUE, "when": "latest"}),
        (Command.DELETE_SUBSCRIPTION, {**topic, "subscription": QUEUE}),
        (Command.TOPIC_SCHEMA, {**topic, "producer": True, "schema": None}),
        (Command.PRODUCER, {**segment, "producer_id": 1, "producer_name": PRODUCER, "access_mode": "shared"}),
        (Command.SUBSCRIBE, {**segment, **named, "consumer_id": 1, "subscription": QUEUE, "mode": "queue"}),
        (Command.SUBSCRIBE, {**segment, **named, "consumer_id": 1, "subscription": None, "mode": "reader"}),
        (Command.SEGMENT_OFFSET, {**segment, "at": "latest", "subscription": QUEUE}),
        (Command.SEGMENT_FILES, {**segment, "start": 0, "stop": 1}),
        (Command.SEGMENT_FILES, {**segment, "start": 0, "stop": 1, "objects": True}),
    ]  # fmt: skip


async def _refusal(peer: Any, command: Command, fields: dict[str, Any], name: str) -> str:
    with pytest.raises(AuthorizationError) as caught:
        await peer.ask(command, **{**fields, "topic": fields["topic"].replace("orders", name)})
    assert not peer.leaks
    return str(caught.value).replace(name, "orders")


async def test_no_client_of_a_neighbour_comes_in(tmp_path):
    """Every way in which a program opens something, by the client itself."""
    async with staged(tmp_path, ("produce", "consume")) as stage, nothing_changes(stage):
        for door in DOORS:
            async with engine.AsyncClient(stage.urls[door], token=EVE) as client:
                for way in _ways(client):
                    with pytest.raises(AuthorizationError):
                        await way()
                for row in ROWS:
                    if row.method and row.name not in WITHOUT_NEED and any(p.required for p in row.parameters):
                        known = {**ARGUMENTS, "ident": stage.victim.transaction}
                        arguments = {p.name: known[p.name] for p in row.parameters if p.required}
                        with pytest.raises(AuthorizationError):
                            await getattr(client.admin, row.name)(**arguments)


def _ways(client: engine.AsyncClient) -> list[Callable[[], Any]]:
    return [
        lambda: client.producer(TOPIC, name=PRODUCER),
        lambda: client.producer(TOPIC, access_mode="exclusive_with_fencing"),
        lambda: client.queue_consumer(TOPIC, QUEUE),
        lambda: client.queue_consumer(None, QUEUE, namespace=THEIRS),
        lambda: client.queue_consumer([f"{MINE}/own", TOPIC], QUEUE),
        lambda: client.stream_consumer(TOPIC, "s"),
        lambda: client.stream_consumer(None, "s", namespace=THEIRS, pattern=".*"),
        lambda: client.checkpoint_consumer(TOPIC),
        lambda: client.topic_view(TOPIC),
        lambda: client.range_reader(TOPIC, {0: (0, 3)}),
        lambda: client.reader(TOPIC),
        lambda: client.table(TOPIC),
        lambda: client.list_topics(THEIRS),
        lambda: client.watch_topics(THEIRS),
    ]


DIAL = """
import os, socket, sys
os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(60)
    s.connect(sys.argv[1])
    try:
        s.sendall(bytes.fromhex(sys.argv[2]))
        print(s.recv(65536).hex())
    except ConnectionError:  # cut off
        print()
"""
NOBODY = 65_534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_machine_is_not_let_in_by_the_unix_socket(tmp_path):
    """Even where the modes of the files would let it connect; with its own token it is what that says."""
    async with staged(tmp_path) as stage, nothing_changes(stage):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "s")
            await stage.broker.serve_unix(path)
            os.chmod(folder, 0o755)
            os.chmod(path, 0o777)
            hello = {"magic": MAGIC, "protocol": PROTOCOL_VERSION, "features": list(FEATURES), "client": "eve"}
            said = encode_bytes(Command.CONNECT, {**hello, "forwarded": "127.0.0.1"}).hex()
            command = [sys.executable, "-S", "-c", DIAL, path, said, str(NOBODY)]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120, check=True
            )
            assert not shows(bytes.fromhex(done.stdout.strip()))
            assert not any(c.ready for c in stage.broker.connections if c.stream.peer.startswith("unix"))


async def test_a_transaction_whose_id_was_told_stays_its_roles(tmp_path):
    """It is neither ended nor shown, by its id or by its name."""
    async with staged(tmp_path, ("admin",)) as stage, nothing_changes(stage):
        peer = await eve(stage, "broker")
        for command, fields in (
            (Command.END_TXN, {"action": "commit"}),
            (Command.END_TXN, {"action": "abort"}),
            (Command.TXN_STATE, {}),
        ):
            with pytest.raises(EngineError):
                await peer.ask(command, id=stage.victim.transaction, **fields)
        assert not peer.leaks


def test_every_command_that_names_a_topic_is_compared():
    """A new one belongs in `_frames`."""
    victim = type("Victim", (), {"segment": "segment://a/b/orders/0000-ffff-0"})
    asked = {command for command, _ in _frames(type("Stage", (), {"victim": victim}))}  # type: ignore[arg-type]
    named = {kind.command for kind, rule in RULES.items() if rule is not None and "topic" in kind.__struct_fields__}
    assert named - asked == {Command.SCALABLE_TOPIC_UNSUBSCRIBE}  # without a topic it is of the connection's own
