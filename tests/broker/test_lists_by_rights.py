"""Lists of topics, as roles see them that have rights on single topics."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights.grants import Grants
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.cli.main import main
from engine.console.source import Source
from engine.errors import AuthorizationError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.rights import Grant, Right
from engine.testing.clock import FakeClock
from engine.wire.commands import Command
from tests.kit.peer import Peer, listening, until

ANN, ROOT = "token-of-ann", "token-of-root"
SOME, FULL = ["orders-1", "orders-2", "orders-3"], "topic://public/default/"


def full(*names: str) -> list[str]:
    return [FULL + name for name in names]


@pytest.fixture
async def broker(start_broker: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Broker]:
    path = tmp_path / "roles"
    path.write_text(f"{line_of('ann', ANN)}\n{line_of('root', ROOT)}\n")
    async with start_broker(roles_file=str(path), superusers=["root"]) as started:
        for name in (*SOME, "topic://public/other/orders-1", "topic://acme/private/orders-1"):
            await started.admin.create_topic(name)
        yield started


@pytest.fixture
async def ann(broker: Broker) -> AsyncIterator[engine.AsyncClient]:
    url = await listening(broker)
    await broker.serve_admin("127.0.0.1", 0)
    async with engine.AsyncClient(url, token=ANN) as client:
        yield client


async def over_rest(broker: Broker) -> Any:
    """The list of public/default, or the status of its refusal."""
    headers = {"Authorization": f"Bearer {ANN}"}
    async with (
        aiohttp.ClientSession(broker.admin_url, headers=headers) as session,
        session.get("/admin/v2/scalable/public/default") as answer,
    ):
        return await answer.json() if answer.status == 200 else answer.status


async def follow(ann: engine.AsyncClient, listed: set[str]) -> None:
    """Keep `listed` as a watch says."""
    async with await ann.watch_topics() as watch:
        async for change in watch:
            listed.difference_update(change.removed)
            listed.update(change.added)


async def test_a_right_on_a_topic_shows_it_in_each_list(broker: Broker, ann: engine.AsyncClient) -> None:
    await broker.admin.grant("public/default/orders-2", "ann", ["consume"])
    await broker.admin.grant("public/default/missing", "ann", ["produce"])  # a grant is no topic
    assert await ann.list_topics() == full("orders-2")
    assert await ann.list_topics(pattern="orders-[12]") == full("orders-2")
    assert await ann.list_topics(pattern="orders-1") == []
    for namespace in ("public/other", "acme/private", "no/such"):
        with pytest.raises(AuthorizationError, match="lookup is needed on"):
            await ann.list_topics(namespace)
    headers = {"Authorization": f"Bearer {ANN}"}
    async with aiohttp.ClientSession(broker.admin_url, headers=headers) as session:
        for path, status, said in (
            ("scalable/public/default", 200, full("orders-2")),
            ("scalable/public/other", 403, None),
            ("namespaces", 200, ["public/default"]),
            ("tenants", 200, []),
        ):
            async with session.get(f"/admin/v2/{path}") as answer:
                assert answer.status == status, path
                assert said is None or await answer.json() == said, path


async def test_each_protocol_lists_what_may_be_looked_up_now(broker: Broker, ann: engine.AsyncClient) -> None:
    admin, root = ann.admin, broker.admin

    async def shows(rest: Any, namespaces: list[str]) -> None:
        assert await over_rest(broker) == rest
        assert await admin.list_namespaces() == namespaces
        if rest == 403:
            with pytest.raises(AuthorizationError, match="lookup is needed on 'public/default'"):
                await admin.list_topics("public/default")
        else:
            assert await admin.list_topics("public/default") == rest

    await shows(403, [])
    for name in ("orders-1", "orders-3"):
        await root.grant(f"public/default/{name}", "ann", ["consume"])
    await shows(full("orders-1", "orders-3"), ["public/default"])
    await root.revoke("public/default/orders-1", "ann")
    await shows(full("orders-3"), ["public/default"])
    await root.grant("public/default", "ann", ["lookup"])
    await shows(full(*SOME), ["public/default"])
    await root.revoke("public/default", "ann")
    await root.revoke("public/default/orders-3", "ann")
    await shows(403, [])


async def test_the_right_to_operate_lists_namespaces_and_no_topics(broker: Broker, ann: engine.AsyncClient) -> None:
    """A namespace is not mistaken for one whose name it begins with."""
    await broker.admin.create_topic("topic://public/default2/x")
    await broker.admin.grant("public/default2/x", "ann", ["consume"])
    assert await ann.admin.list_namespaces() == ["public/default2"]
    await broker.admin.grant("*", "ann", ["operate"])
    assert await over_rest(broker) == 403


async def test_a_namespace_consumer_reads_the_topics_of_the_role(broker: Broker, ann: engine.AsyncClient) -> None:
    for name in SOME[:2]:
        await broker.admin.grant(f"public/default/{name}", "ann", ["consume"])
    consumer = await ann.queue_consumer(None, "s", namespace="public/default", initial_position="earliest")
    async with engine.AsyncClient(await listening(broker), token=ROOT) as client:
        for name in reversed(SOME):
            async with client.producer(name) as producer:
                await producer.send(name.encode())
        got = [await consumer.receive(timeout=30) for _ in range(2)]
        assert sorted(message.value.decode() for message in got) == SOME[:2]
        await broker.admin.grant(f"public/default/{SOME[2]}", "ann", ["consume"])
        assert (await consumer.receive(timeout=30)).value.decode() == SOME[2]
    await consumer.close()


async def test_a_list_follows_the_rights(broker: Broker, ann: engine.AsyncClient) -> None:
    """Each change of a grant is one of the list; a role that may see nothing any more sees nothing."""
    await broker.admin.grant("public/default/orders-1", "ann", ["lookup"])
    listed: set[str] = set()
    following = asyncio.ensure_future(follow(ann, listed))
    try:
        await until(lambda: listed == set(full("orders-1")))
        await broker.admin.grant("public/default/orders-2", "ann", ["consume"])
        await until(lambda: listed == set(full("orders-1", "orders-2")))
        await broker.admin.delete_topic("orders-1")
        await until(lambda: listed == set(full("orders-2")))
        await broker.admin.create_topic("orders-9")
        await broker.admin.create_topic("orders-1")
        await until(lambda: listed == set(full("orders-1", "orders-2")))
        await broker.admin.grant("public/default", "ann", ["lookup"])
        await until(lambda: listed == set(full("orders-1", "orders-2", "orders-3", "orders-9")))
        await broker.admin.grant("public/default/persistent:orders-1", "ann", ["lookup"])
        await broker.admin.revoke("public/default", "ann")
        await until(lambda: listed == set(full("orders-1", "orders-2")))
        await broker.admin.revoke("public/default/orders-1", "ann")
        await until(lambda: listed == set(full("orders-2")))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_watch_ends_with_the_last_right(broker: Broker) -> None:
    await broker.admin.grant("public/default/orders-1", "ann", ["lookup"])
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    await peer.hello(token=ANN)
    asked = {"namespace": "public/default", "properties": None, "pattern": None, "hash": None}
    first = await peer.ask(Command.WATCH_TOPIC_LIST, session_id=5, **asked)
    assert first["snapshot"] == full("orders-1")
    await broker.admin.revoke("public/default/orders-1", "ann")
    _, ended, _ = await peer.take(Command.ERROR, session_id=5)
    assert ended["code"] == AuthorizationError.code
    assert not broker.service.topic_lists._namespaces["public/default"]._lists[filter_of(broker)].listeners


def filter_of(broker: Broker) -> Any:
    (found,) = broker.service.topic_lists._namespaces["public/default"]._lists
    return found


async def test_rights_that_change_while_a_list_is_sent_begin_it_anew(
    broker: Broker, ann: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.broker.session.topic_lists.TOPICS_PER_FRAME_MAX", 1)
    for name in SOME:
        await broker.admin.grant(f"public/default/{name}", "ann", ["lookup"])
    rng, listed = random.Random(25), set[str]()
    following = asyncio.ensure_future(follow(ann, listed))
    granted = set(SOME)
    try:
        for _ in range(60):
            name = rng.choice(SOME)
            if name in granted and len(granted) > 1:
                granted.discard(name)
                await broker.admin.revoke(f"public/default/{name}", "ann")
            elif name not in granted:
                granted.add(name)
                await broker.admin.grant(f"public/default/{name}", "ann", ["lookup"])
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        await until(lambda: listed == set(full(*granted)))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_the_command_line_and_the_console_show_them(
    broker: Broker, ann: engine.AsyncClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.admin.grant("public/default/orders-3", "ann", ["consume"])
    url = await listening(broker)
    monkeypatch.setenv("ENGINE_TOKEN", ANN)
    assert await asyncio.to_thread(main, ["topics", "list", "--url", url]) == 0
    assert capsys.readouterr().out.split() == full("orders-3")
    async with engine.AsyncClient(url, token=ANN) as client:
        assert await Source(client)._names() == full("orders-3")


# -- what it costs -----------------------------------------------------------------------------------------------------


async def following(roles: Iterable[str]) -> Grants:
    found = Grants(MemoryMetadataStore(FakeClock()), lambda role: None)
    for role in roles:
        found.use(role)
        await found.known(role, 60.0)
    return found


def loaded(found: Grants, grants: list[Grant]) -> Grants:
    for grant in grants:
        found.note(keys.grant(grant.resource, grant.role), grant.to_json())
    return found


@pytest.mark.parametrize("per_namespace", [1, 1_000])
async def test_grants_on_topics_take_less_than_500_bytes_each(per_namespace: int) -> None:
    """A hundred thousand of them less than 50 MB."""
    grants = [Grant(f"acme/n{i // per_namespace}/t{i}", f"role-{i % 7}", ("consume",)) for i in range(5_000)]
    sizes = [traced_bytes(await following(f"role-{i}" for i in range(7)), grants) for _ in range(3)]
    assert min(sizes) < 500 * len(grants)


def traced_bytes(found: Grants, grants: list[Grant]) -> int:
    """What they take, loaded; and what other threads of this process have taken meanwhile."""
    tracemalloc.start()
    try:
        loaded(found, grants)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == len(grants)
    return size


async def test_the_topics_of_a_role_are_those_that_its_grants_name() -> None:
    """Compared with all that are looked through, in random orders."""
    rng = random.Random(7)
    found, known = await following(("ann", "bob")), dict[tuple[str, str], Grant]()
    resources = ["*", "a", "a/n", "a/m", *(f"a/{space}/t{i}" for space in "nm" for i in range(5))]
    for _ in range(3_000):
        resource, role = rng.choice(resources), rng.choice(["ann", "bob"])
        if rng.random() < 0.5:
            grant = Grant(resource, role, (rng.choice(["produce", "lookup", "admin"]),))
            found.note(keys.grant(resource, role), grant.to_json())
            known[resource, role] = grant
        else:
            found.note(keys.grant(resource, role), None)
            known.pop((resource, role), None)
        wanted = {
            on.split("/")[2]
            for (on, of), grant in known.items()
            if of == "ann" and on.startswith("a/n/") and grant.mask & Right.LOOKUP
        }
        assert found.topics("ann", "a/n") == wanted
        assert found.some_below("ann", "a/n") == bool(wanted)
    for resource, role in known:
        found.note(keys.grant(resource, role), None)
    assert not any(role.topics for role in found._roles.values())
    assert not len(found)


async def statistics(broker: Broker, token: str) -> dict[str, set[str]]:
    """The names of subscriptions in each part of the statistics, by where they stand."""
    topics = "/admin/v2/scalable/public/default/orders-1"
    classic = "/admin/v2/persistent/public/default/orders-1"
    found: dict[str, set[str]] = {}
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(broker.admin_url, headers=headers) as session:

        async def get(path: str) -> Any:
            async with session.get(path) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        whole = await get(f"{topics}/stats")
        (part,) = whole["segments"].values()
        one = await get("/admin/v2/segments/public/default/orders-1/0000-ffff-0/stats")
        found["whole"] = {*whole["subscriptions"]}
        found["groups"] = {*whole["checkpointGroups"]}
        for where, segment in (("of whole", part), ("segment", one)):
            found[f"backlog {where}"] = {*segment["backlog"]}
            found[f"consumers {where}"] = {*segment["consumers"]}
        found["segment"] = {*one["subscriptions"]}
        found["classic"] = {*(await get(f"{classic}/stats"))["subscriptions"]}
        found["classic list"] = {*(await get(f"{classic}/subscriptions"))}
    return found


async def test_statistics_have_the_subscriptions_that_the_role_may_look_up(broker: Broker) -> None:
    """A prefix of `consume` is one of what is shown: others' names, backlogs and consumers are theirs."""
    url = await listening(broker)
    await broker.serve_admin("127.0.0.1", 0)
    await broker.admin.create_topic("persistent://public/default/orders-1")
    async with engine.AsyncClient(url, token=ROOT) as root:
        attached: list[Any] = []
        for prefix in ("ann-", "bob-"):
            await broker.admin.create_subscription("persistent://public/default/orders-1", f"{prefix}s")
            attached.append(await root.stream_consumer("orders-1", f"{prefix}s", initial_position="earliest"))
            start = engine.Checkpoint.earliest()
            attached.append(await root.checkpoint_consumer("orders-1", group=f"{prefix}g", start=start))
        both, own = {"ann-s", "bob-s"}, {"ann-s"}
        every = await statistics(broker, ROOT)
        assert every.pop("groups") == {"ann-g", "bob-g"}
        assert all(names == both for names in every.values()), every
        await broker.admin.grant("public/default", "ann", ["consume"], subscription_prefix="ann-")
        some = await statistics(broker, ANN)
        assert some.pop("groups") == {"ann-g"}
        assert all(names == own for names in some.values()), some
        for rights in (["lookup"], ["produce"], ["admin"]):  # of the whole topic, without a prefix
            await broker.admin.grant("public/default/orders-1", "ann", rights)
            assert (await statistics(broker, ANN))["whole"] == both, rights
        await broker.admin.grant("public/default/orders-1", "ann", ["consume", "lookup"], subscription_prefix="bob-")
        assert (await statistics(broker, ANN))["whole"] == both, "two prefixes"
        await broker.admin.grant("public/default/persistent:orders-1", "ann", ["lookup"])
        await broker.admin.revoke("public/default", "ann")
        assert (await statistics(broker, ANN))["whole"] == {"bob-s"}
        await broker.admin.grant("public/default/orders-1", "ann", ["consume", "admin"], subscription_prefix="bob-")
        assert (await statistics(broker, ANN))["whole"] == both, "an administrator's"
