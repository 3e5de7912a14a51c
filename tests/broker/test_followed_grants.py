"""A broker follows the grants of the roles that are here, and of no others; what is not known of a role is an error."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights import grants as followed
from engine.broker.rights import rights
from engine.broker.rights.grants import Grants, _of_role
from engine.broker.rights.records import INDEX_GRANTS, indexes_of
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.cli.reloading import reload_broker
from engine.errors import AuthenticationError, AuthorizationError, ConnectError, EngineError, TimeoutError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Event, Watch
from engine.model.rights import CLUSTER, Grant, Right
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore
from engine.wire.commands import Command
from tests.kit.peer import Peer, listening, until

WAIT_S = 60.0
ROLES = ("ann", "bob", "gate", "root")
TOPICS = "/admin/v2/scalable/public/default"


def token(role: str) -> str:
    return f"token-of-{role}"


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(role, token(role)) + "\n" for role in ROLES))
    return path


@pytest.fixture
def start(start_broker: Callable[..., Any], roles: Path) -> Callable[..., Any]:
    return lambda **more: start_broker(roles_file=str(roles), superusers=["root"], **more)


@pytest.fixture
async def broker(start: Callable[..., Any]) -> AsyncIterator[Broker]:
    async with start() as started:
        yield started


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    found = MemoryMetadataStore(FakeClock())
    yield found
    await found.close()


def grants_of(broker: Broker) -> Grants:
    assert broker.rights._grants is not None
    return broker.rights._grants


async def write(store: Any, resource: str, role: str, *rights: str) -> None:
    """As another broker does."""
    grant = Grant(resource, role, rights)
    await store.put(keys.grant(resource, role), grant.to_json(), indexes=indexes_of(resource, role))


async def write_as_before(store: Any, resource: str, role: str, *rights: str) -> None:
    """As a broker of an older build does."""
    await store.put(keys.grant(resource, role), json.dumps({"rights": rights}).encode())


async def client(broker: Broker, url: str, role: str, **more: Any) -> Peer:
    """Its connection, with its handshake done."""
    peer = await Peer.connect(broker, url, hello=False)
    await peer.hello(token=token(role), **more)
    return peer


class Gate:
    """Watches of an index of a broker's store: each is handed on once its gate is open. `opened` is how many there
    were, by the start of their range.
    """

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = store.watch_index
        self.open = asyncio.Event()
        self.opened: list[str] = []
        monkeypatch.setattr(store, "watch_index", self._watch)

    def _watch(self, index: str, start: str, end: str) -> Watch:
        real = self._real(index, start, end)
        if index != INDEX_GRANTS:
            return real
        self.opened.append(start)
        return _Gated(real, self.open)


class _Gated:
    def __init__(self, real: Watch, gate: asyncio.Event) -> None:
        self._real = real
        self._gate = gate

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        await self._gate.wait()
        async for event in self._real:
            yield event

    def close(self) -> None:
        self._real.close()


# -- which records are a role's ----------------------------------------------------------------------------------------

NAMES = ("a", "a/b", "a%2F", "a%2Fb", "ab", "a%", "a-b", "a.b", "a0", "A", "ä", "a\U0010ffff", "aa")


@pytest.mark.parametrize("role", NAMES)
async def test_the_range_of_a_role_has_its_grants_and_those_of_no_other(store: MemoryMetadataStore, role: str) -> None:
    resources = ("*", "a", "a/b", "a/b/c", "a%2Fb", "ä")
    for name in NAMES:
        for resource in resources:
            await store.put(keys.grant(resource, name), b"", indexes=indexes_of(resource, name))
    found = await store.newest.list_index(INDEX_GRANTS, *_of_role(role))
    assert sorted(keys.grant_of(record.key) for _, record in found) == sorted((one, role) for one in resources)


async def test_roles_whose_names_begin_alike_have_their_own_grants(store: MemoryMetadataStore) -> None:
    names = ("a", "ab", "a%2F", "a%", "a-b", "a.b")
    for name in names:
        await write(store, f"of-{name}", name, "produce")
    grants = Grants(store, lambda role: None)
    for name in names:
        grants.use(name)
        await grants.known(name, WAIT_S)
    for name in names:
        assert [other for other in names if grants.holds(name, Right.PRODUCE, f"of-{other}")] == [name]
    await grants.close()


# -- which roles are followed ------------------------------------------------------------------------------------------


async def test_what_is_asked_of_a_role_that_is_not_known_is_an_error(store: MemoryMetadataStore) -> None:
    await write(store, "a/b/c", "ann", "produce")
    grants = Grants(store, lambda role: None)
    questions: list[Callable[[], object]] = [
        lambda: grants.holds("ann", Right.PRODUCE, "a/b/c"),
        lambda: grants.topics("ann", "a/b"),
        lambda: grants.some_below("ann", "a/b"),
        lambda: grants.held("ann", "a/b/c"),
        lambda: grants.shown("ann", "a/b/c"),
    ]

    def ask() -> None:
        for question in questions:
            with pytest.raises(TimeoutError, match="the grants of 'ann' are not known here; try again"):
                question()

    ask()
    grants.use("ann")
    ask()  # not yet
    await grants.known("ann", WAIT_S)
    assert all(question() for question in questions[:4])
    grants.leave("ann")
    assert grants.holds("ann", Right.PRODUCE, "a/b/c"), "it is followed on, as one of the idle ones"
    await grants.close()


async def test_the_idle_role_that_is_dropped_is_the_one_unused_for_longest(
    store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "IDLE_MAX", 2)
    ended: list[str] = []
    grants = Grants(store, lambda role: None, lambda role: None, ended.append)
    for role in ("a", "b", "c"):
        await write(store, "t", role, "produce")
        grants.use(role)
        await grants.known(role, WAIT_S)
    for role in ("b", "a"):
        grants.leave(role)
    grants.use("b")  # and so it is not the oldest any more
    grants.leave("b")
    assert not ended
    assert grants.holds("a", Right.PRODUCE, "t")
    grants.leave("c")
    assert ended == ["a"]
    assert [grants.knows(role) for role in "abc"] == [False, True, True]
    assert len(grants) == 2
    with pytest.raises(TimeoutError):
        grants.holds("a", Right.PRODUCE, "t")  # also what was answered before
    await store.delete(keys.grant("t", "a"))
    grants.use("a")
    await grants.known("a", WAIT_S)
    assert not grants.holds("a", Right.PRODUCE, "t")
    await grants.close()


async def test_a_change_is_told_once_the_grants_are_known(store: MemoryMetadataStore) -> None:
    changed: list[str] = []
    began: list[str] = []
    grants = Grants(store, changed.append, began.append)
    for number in range(100):
        await write(store, f"t{number}", "ann", "produce")
    grants.use("ann")
    await grants.known("ann", WAIT_S)
    assert (began, changed, len(grants)) == (["ann"], [], 100)
    await write(store, "t1", "bob", "produce")
    await store.delete(keys.grant("t1", "ann"))
    await until(lambda: changed)
    assert (began, changed, len(grants)) == (["ann"], ["ann"], 99)
    await grants.close()


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("again", [False, True])
async def test_what_changes_while_the_following_begins_is_not_missed(
    store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch, turns: int, again: bool
) -> None:
    """So many turns of the loop behind its begin; also where the role was followed before, and was just dropped."""
    monkeypatch.setattr(followed, "IDLE_MAX", 0)
    grants = Grants(store, lambda role: None)
    for number in range(100):
        await write(store, f"t{number}", "ann", "produce")
    if again:
        grants.use("ann")
        await grants.known("ann", WAIT_S)
        grants.leave("ann")
    grants.use("ann")
    for _ in range(turns):
        await asyncio.sleep(0)
    for number in (0, 99):
        await store.delete(keys.grant(f"t{number}", "ann"))
    await write(store, "t50", "ann", "consume")
    await write(store, "new", "ann", "produce")
    await grants.known("ann", WAIT_S)
    await until(lambda: len(grants) == 99 and grants.holds("ann", Right.PRODUCE, "new"))
    await until(lambda: not grants.holds("ann", Right.PRODUCE, "t50"))
    assert not any(grants.holds("ann", Right.PRODUCE, one) for one in ("t0", "t99"))
    await grants.close()


async def test_what_is_noted_of_a_role_that_is_not_followed_is_not_kept(store: MemoryMetadataStore) -> None:
    grants = Grants(store, lambda role: None)
    assert grants.note(keys.grant("a", "ann"), Grant("a", "ann", ("produce",)).to_json()) is None
    assert not len(grants)
    grants.use("ann")
    await grants.known("ann", WAIT_S)
    assert not grants.holds("ann", Right.PRODUCE, "a")
    await grants.close()


async def test_a_broker_knows_the_roles_that_are_here(broker: Broker) -> None:
    for role in ("ann", "bob"):
        await broker.admin.grant("public", role, ["produce"])
    grants, url = grants_of(broker), await listening(broker)
    assert not len(grants)
    await client(broker, url, "ann")
    assert (len(grants), grants.knows("ann"), grants.knows("bob")) == (1, True, False)
    await client(broker, url, "bob")
    assert len(grants) == 2


async def test_a_role_is_followed_until_its_last_connection_is_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "IDLE_MAX", 0)
    grants, url = grants_of(broker), await listening(broker)
    first, second = [await client(broker, url, "ann") for _ in range(2)]
    first.stream.close()
    await until(lambda: len(broker.connections) == 1)
    assert grants.knows("ann")
    second.stream.close()
    await until(lambda: not broker.connections)
    assert not grants.knows("ann")
    assert not grants._roles


async def test_requests_over_http_one_by_one_are_one_watch(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(broker.metadata, monkeypatch)
    gate.open.set()
    await broker.admin.grant("public", "ann", ["lookup"])
    await broker.serve_admin("127.0.0.1", 0)
    for role, status in 3 * [("ann", 200), ("bob", 403)]:
        assert await over_http(broker, role) == status
    assert gate.opened == ["ann/", "bob/"]
    assert not any(role.users for role in grants_of(broker)._roles.values())


async def over_http(broker: Broker, role: str, **headers: str) -> int:
    headers = {"Authorization": f"Bearer {token(role)}", **headers}
    async with aiohttp.ClientSession(broker.admin_url, headers=headers) as session, session.get(TOPICS) as answer:
        return answer.status


# -- a store that says nothing -----------------------------------------------------------------------------------------


async def test_a_handshake_waits_for_the_grants_while_others_go_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.admin.grant("public", "ann", ["produce"])
    url = await listening(broker)
    async with engine.AsyncClient(url, token=token("ann")) as known:
        producer = await known.producer("orders")
        gate = Gate(broker.metadata, monkeypatch)
        waiting = asyncio.create_task(client(broker, url, "bob"))
        await until(lambda: gate.opened)
        await client(broker, url, "ann")
        await producer.send(b"x")
        assert not waiting.done()
        assert [c.ready for c in broker.connections if c.role != "ann"] == [False]
        gate.open.set()
        peer = await waiting
        with pytest.raises(AuthorizationError):
            await peer.lookup("orders")


@pytest.mark.parametrize("more", [{}, {"proxy_token": token("gate"), "forwarded": "tcp://192.0.2.7:5"}])
async def test_a_handshake_that_the_store_does_not_answer_ends_with_an_error(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    async with start(handshake_timeout=2.0) as broker:
        url = await listening(broker)
        Gate(broker.metadata, monkeypatch)
        role = "gate" if more else "ann"
        with pytest.raises(ConnectError, match=f"the grants of '{role}' within .* s; try again") as raised:
            await client(broker, url, "ann", **more)
        assert raised.value.retryable
        await until(lambda: not broker.connections)
        root = await client(broker, url, "root")
        await root.lookup("orders")
        assert not grants_of(broker)._waiting


async def test_a_request_over_http_that_the_store_does_not_answer_ends_with_an_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.serve_admin("127.0.0.1", 0)
    Gate(broker.metadata, monkeypatch)
    monkeypatch.setattr(rights, "KNOWN_S_MAX", 0.01)
    assert await over_http(broker, "ann") == 504
    assert await over_http(broker, "root") == 200
    proxied = {"Engine-Proxy-Authorization": f"Bearer {token('gate')}", "Engine-Proxy-Client": "192.0.2.7"}
    assert await over_http(broker, "root", **proxied) == 504
    assert not any(role.users for role in grants_of(broker)._roles.values())


async def test_so_many_wait_and_further_ones_are_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "WAITING_MAX", 1)
    url, grants = await listening(broker), grants_of(broker)
    gate = Gate(broker.metadata, monkeypatch)
    waiting = asyncio.create_task(client(broker, url, "ann"))
    await until(lambda: grants._waiting)
    with pytest.raises(ConnectError, match=r"limit of roles whose grants are waited for reached \(1\)"):
        await client(broker, url, "bob")
    of_the_same = asyncio.create_task(client(broker, url, "ann"))
    await until(lambda: grants._waiting["ann"] == 2)
    gate.open.set()
    await waiting
    await of_the_same
    await client(broker, url, "bob")


async def test_what_is_attached_comes_back_where_too_many_roles_wait(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await listening(broker)
    await write(broker.metadata, CLUSTER, "ann", "produce", "consume")
    async with (
        engine.AsyncClient(url, token=token("ann")) as user,
        await user.producer("orders") as producer,
        await user.queue_consumer("orders", "s", initial_position="earliest") as consumer,
    ):
        await producer.send(b"before")
        await consumer.acknowledge(await consumer.receive())
        gate = Gate(broker.metadata, monkeypatch)
        monkeypatch.setattr(followed, "IDLE_MAX", 0)
        monkeypatch.setattr(followed, "WAITING_MAX", 0)
        for connection in list(broker.connections):
            connection.stream.abort()
        sending = asyncio.ensure_future(producer.send(b"behind"))
        await until(lambda: len(gate.opened) >= 3)  # each attempt was refused
        assert not sending.done()
        monkeypatch.setattr(followed, "WAITING_MAX", 1_000)
        gate.open.set()
        await sending
        assert (await consumer.receive()).value == b"behind"


async def test_a_revocation_that_takes_a_record_out_of_the_index_counts_where_the_watch_was_down() -> None:
    """As a broker of an older build writes it: the record is there, and not in the index any more."""

    async def body() -> None:
        store = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(1))
        await write(store, "t/n", "ann", "produce", "consume")
        grants = Grants(store, lambda role: None)
        grants.use("ann")
        await grants.known("ann", 1.0)
        assert grants.holds("ann", Right.PRODUCE, "t/n")
        store.break_watches()
        await write_as_before(store, "t/n", "ann", "lookup")
        await asyncio.sleep(1)
        assert not grants.holds("ann", Right.PRODUCE | Right.CONSUME, "t/n")
        await grants.close()
        await store.close()

    await body()


def withdraw(roles: Path) -> None:
    """The token of ann."""
    roles.write_text(line_of("bob", token("bob")) + "\n")


async def test_a_token_that_is_withdrawn_during_the_wait_is_refused(
    broker: Broker, roles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, gate = await listening(broker), Gate(broker.metadata, monkeypatch)
    waiting = asyncio.create_task(client(broker, url, "ann"))
    await until(lambda: gate.opened)
    before = broker.identities.generation
    withdraw(roles)
    await until(lambda: broker.identities.generation > before)
    gate.open.set()
    with pytest.raises(AuthenticationError, match="the token was revoked"):
        await waiting


async def test_a_proxy_that_loses_its_right_during_the_wait_for_its_client_is_not_believed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.admin.grant(CLUSTER, "gate", ["proxy"])
    url = await listening(broker)
    await client(broker, url, "gate")  # so that it is known, and the client waits
    gate = Gate(broker.metadata, monkeypatch)
    waiting = asyncio.create_task(client(broker, url, "ann", proxy_token=token("gate"), forwarded="tcp://192.0.2.7:5"))
    await until(lambda: gate.opened)
    assert gate.opened == ["ann/"]
    await broker.metadata.delete(keys.grant(CLUSTER, "gate"))
    await until(lambda: not grants_of(broker).holds("gate", Right.PROXY, CLUSTER))
    gate.open.set()
    with pytest.raises(AuthorizationError, match="the right proxy is needed on the cluster"):
        await waiting


async def test_who_was_let_in_as_a_superuser_and_is_none_is_closed_where_its_grants_are_not_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await listening(broker)
    Gate(broker.metadata, monkeypatch)
    root = await client(broker, url, "root")
    await root.lookup("orders")  # a session, which needs a right
    reload_broker(broker, dataclasses.replace(broker.config, superusers=()))
    await root.until(root.lost.done)
    _, error, _ = await root.take(Command.ERROR)
    assert EngineError.from_code(error["code"], error["message"]).retryable


# -- revocation --------------------------------------------------------------------------------------------------------


async def test_a_grant_that_is_revoked_ends_what_was_attached_after_the_role_had_been_dropped(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "IDLE_MAX", 0)
    await write(broker.metadata, "public", "ann", "produce")
    url = await listening(broker)
    for _ in range(2):
        async with engine.AsyncClient(url, token=token("ann")) as ann:
            await (await ann.producer("orders")).send(b"x")
        await until(lambda: not any(c.role == "ann" for c in broker.connections))
        assert not grants_of(broker)._roles
    async with engine.AsyncClient(url, token=token("ann")) as ann:
        producer = await ann.producer("orders")
        await producer.send(b"x")
        await broker.metadata.delete(keys.grant("public", "ann"))
        await until(lambda: not any(c.producers for c in broker.connections))
        with pytest.raises(AuthorizationError):
            await producer.send(b"y")


async def test_what_was_revoked_while_the_role_was_not_followed_is_not_granted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "IDLE_MAX", 0)
    await write(broker.metadata, "public", "ann", "produce")
    url = await listening(broker)
    async with engine.AsyncClient(url, token=token("ann")) as ann:
        await (await ann.producer("orders")).send(b"x")
    await until(lambda: not grants_of(broker)._roles)
    await broker.metadata.delete(keys.grant("public", "ann"))
    async with engine.AsyncClient(url, token=token("ann")) as ann:
        with pytest.raises(AuthorizationError):
            await ann.producer("orders")


async def test_a_revoked_right_of_a_proxy_ends_its_clients_after_it_was_followed_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "IDLE_MAX", 0)
    await write(broker.metadata, CLUSTER, "gate", "proxy")
    url = await listening(broker)
    proxied = {"proxy_token": token("gate"), "forwarded": "tcp://192.0.2.7:5"}
    first = await client(broker, url, "ann", **proxied)
    assert sorted(grants_of(broker)._roles) == ["ann", "gate"]
    first.stream.close()
    await until(lambda: not grants_of(broker)._roles)
    second = await client(broker, url, "ann", **proxied)
    await broker.metadata.delete(keys.grant(CLUSTER, "gate"))
    await second.until(second.lost.done)
    with pytest.raises(AuthorizationError, match="the right proxy is needed"):
        await client(broker, url, "ann", **proxied)


# -- records of an older build -----------------------------------------------------------------------------------------


async def test_records_without_the_index_are_put_again_at_a_start(start: Callable[..., Any]) -> None:
    async with start() as broker:
        await write_as_before(broker.metadata, "public", "ann", "produce")
        with pytest.raises(AuthorizationError):
            await produce(broker)
    async with start() as broker:
        await produce(broker)
        assert json.loads((await broker.metadata.newest.get(keys.grant("public", "ann"))).value) == {
            "rights": ["produce"],
            "role": "ann",
        }


async def produce(broker: Broker) -> None:
    async with engine.AsyncClient(await listening(broker), token=token("ann")) as ann:
        await (await ann.producer("orders")).send(b"x")


async def test_of_what_an_older_build_changes_nothing_is_granted_until_the_next_start(
    start: Callable[..., Any],
) -> None:
    async with start() as broker:
        await write(broker.metadata, "public", "ann", "produce", "consume")
        await client(broker, await listening(broker), "ann")
        grants = grants_of(broker)
        assert grants.holds("ann", Right.CONSUME, "public")
        await write_as_before(broker.metadata, "public", "ann", "produce")
        await until(lambda: not grants.holds("ann", Right.CONSUME, "public"))
        assert not grants.holds("ann", Right.PRODUCE, "public")
    async with start() as broker:
        await client(broker, await listening(broker), "ann")
        grants = grants_of(broker)
        assert grants.holds("ann", Right.PRODUCE, "public")
        assert not grants.holds("ann", Right.CONSUME, "public")
        await broker.metadata.delete(keys.grant("public", "ann"))  # as every build revokes
        await until(lambda: not grants.holds("ann", Right.PRODUCE, "public"))
