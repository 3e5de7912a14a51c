"""Roles: which tokens prove one, and that a role may do nothing that it was not granted."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import aiohttp
import pytest

import engine
from engine.broker.rights import changes, producer_names, records
from engine.broker.rights.token_file import line_of, parse
from engine.cli.reloading import reload_broker
from engine.client.admin.admin_http import HttpAdmin
from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    EngineError,
    InvalidArgumentError,
    InvalidConfigurationError,
    LimitExceededError,
    ProducerBusyError,
    TransactionNotFoundError,
)
from engine.metadata import keys
from engine.model.names import TopicName
from engine.model.rights import Grant, Right
from engine.wire.commands import Command
from tests.broker.transacting import entry, send
from tests.kit.peer import Peer, listening, until

ANN, BOB, ROOT = "token-of-ann", "token-of-bob", "token-of-root"


@pytest.fixture
def roles(tmp_path):
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("ann", ANN), ("bob", BOB), ("root", ROOT))))
    return path


@pytest.fixture
def start(start_broker, roles, tmp_path):
    def begin(**more):
        return start_broker(roles_file=str(roles), superusers=["root"], audit_log=str(tmp_path / "audit"), **more)

    return begin


async def granted(broker, resource: str, role: str, *rights: str, prefix: str | None = None) -> None:
    """Written as by another broker. Where nothing of the role is here, it shows with its next connection."""
    grant, grants = Grant(resource, role, rights, prefix), broker.rights._grants
    await broker.metadata.put(keys.grant(resource, role), grant.to_json(), indexes=records.indexes_of(resource, role))
    await until(lambda: not grants.knows(role) or grants.holds(role, grant.mask, resource))


async def test_a_role_may_do_nothing_until_it_is_granted(start):
    async with start() as broker:
        url = await listening(broker)
        async with engine.AsyncClient(url, token=ANN) as ann:
            with pytest.raises(AuthorizationError, match=r"produce or consume is needed on 'public/default/orders'"):
                await ann.producer("orders")
            assert await broker.admin.list_topics("public/default") == []  # nothing was created
            await granted(broker, "public/default/orders", "ann", "produce")
            producer = await ann.producer("orders")
            await producer.send(b"x")
            with pytest.raises(AuthorizationError, match="consume"):
                await ann.queue_consumer("orders", "s")
            with pytest.raises(AuthorizationError):
                await ann.producer("others")


async def test_superusers_do_everything(start):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ROOT) as root:
        producer = await root.producer("orders")
        await producer.send(b"x")


async def test_what_is_no_superuser_any_more_has_its_grants_alone(start):
    """A configuration that is read again reaches what is attached."""
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ROOT) as root:
        producer = await root.producer("orders")
        await producer.send(b"x")
        consumer = await root.queue_consumer("orders", "s", initial_position="earliest")
        assert (await consumer.receive()).value == b"x"
        await granted(broker, "public", "root", "consume")
        reload_broker(broker, dataclasses.replace(broker.config, superusers=("bob",)))
        await until(lambda: not any(c.producers for c in broker.connections))
        with pytest.raises(AuthorizationError, match="produce"):
            await producer.send(b"y")
        async with engine.AsyncClient(await listening(broker), token=BOB) as bob, bob.producer("orders") as another:
            await another.send(b"z")
        assert (await consumer.receive()).value == b"z"


@pytest.mark.parametrize("token", [None, "wrong", "a.b.c"])
async def test_other_tokens_are_refused_as_before(start, token):
    async with start() as broker:
        with pytest.raises(AuthenticationError, match=r"a token is required, got none|the token is invalid"):
            async with engine.AsyncClient(await listening(broker), token=token):
                pass


async def test_a_revoked_right_ends_producers_and_consumers(start):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ANN) as ann:
        await granted(broker, "public", "ann", "produce", "consume")
        producer = await ann.producer("orders")
        await producer.send(b"x")
        consumer = await ann.queue_consumer("orders", "s", initial_position="earliest")
        assert (await consumer.receive()).value == b"x"
        await broker.metadata.delete(keys.grant("public", "ann"))
        with pytest.raises(AuthorizationError):
            await consumer.receive()
        await until(lambda: not any(c.producers for c in broker.connections))
        with pytest.raises(AuthorizationError):
            await producer.send(b"y")


@pytest.mark.parametrize("lost", ["produce", "consume"])
async def test_a_transaction_is_not_committed_without_the_rights_to_what_was_done_in_it(start, tmp_path, lost):
    """It may be open for a day: what a role lost meanwhile, it cannot do with its commit."""
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ANN) as ann:
        await granted(broker, "public", "ann", "produce", "consume")
        producer = await ann.producer("orders")
        await producer.send(b"before")
        consumer = await ann.queue_consumer("orders", "s", initial_position="earliest")
        message = await consumer.receive()
        transaction = await ann.transaction()
        if lost == "produce":
            await producer.send(b"inside", transaction=transaction)
        else:
            await consumer.acknowledge(message, transaction=transaction)
        (left,) = {"produce", "consume"} - {lost}
        await granted(broker, "public", "ann", left)
        await until(lambda: not broker.rights._grants.holds("ann", Right[lost.upper()], "public"))
        with pytest.raises(AuthorizationError, match=f"the right {lost} is needed on 'public/default/orders'"):
            await transaction.commit()
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert lines[-1]["request"] == f"END_TXN {transaction.id}"
        assert lines[-1]["right"] == lost
        assert str(transaction.state).lower() == "open"
        await granted(broker, "public", "ann", "produce", "consume")
        await transaction.commit()


async def test_a_commit_reads_no_operations_where_no_right_has_changed(start, monkeypatch):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ANN) as ann:
        await granted(broker, "public", "ann", "produce")
        monkeypatch.setattr(changes, "SKEW_MS", -100_000)  # as if the broker had run for long
        read: list[int] = []
        monkeypatch.setattr(broker.transactions.coordinator, "operations", read.append)
        producer = await ann.producer("orders")
        async with ann.transaction() as transaction:
            await producer.send(b"inside", transaction=transaction)
        assert str(transaction.state).lower() == "committed"
        assert not read


async def test_superusers_that_are_none_any_more_do_not_commit_either(start):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ROOT) as root:
        producer = await root.producer("orders")
        transaction = await root.transaction()
        await producer.send(b"inside", transaction=transaction)
        reload_broker(broker, dataclasses.replace(broker.config, superusers=()))
        with pytest.raises(AuthorizationError, match="the right produce is needed"):
            await transaction.commit()


async def test_a_subscription_prefix_is_of_consumers(start):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ANN) as ann:
        await granted(broker, "public/default", "ann", "consume", prefix="ann-")
        await ann.queue_consumer("orders", "ann-1")
        with pytest.raises(AuthorizationError, match="subscription 'bob'"):
            await ann.queue_consumer("orders", "bob")
        producer = await ann.producer("orders")  # the topic is there; the segment's owner refuses
        with pytest.raises(AuthorizationError, match="produce"):
            await producer.send(b"x")


async def test_a_token_that_leaves_the_file_ends_its_connections(start, roles):
    async with start() as broker:
        url = await listening(broker)
        peers = {}
        for token in (ANN, BOB):
            peer = peers[token] = await Peer.connect(broker, url, hello=False)
            await peer.hello(token=token)
        roles.write_text(line_of("bob", BOB) + "\n")
        await peers[ANN].lost
        assert not peers[BOB].lost.done()
        again = await Peer.connect(broker, url, hello=False)
        with pytest.raises(AuthenticationError):
            await again.hello(token=ANN)


async def test_a_change_that_a_request_has_seen_first_ends_connections_too(start, roles):
    async with start() as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        await peer.hello(token=ANN)
        roles.write_text(line_of("bob", BOB) + "\n")
        assert broker.identities.refresh()  # as a handshake or a request over HTTP calls it
        async with asyncio.timeout(5):
            await peer.lost


async def test_denials_are_audited_without_secrets(start, tmp_path):
    async with start() as broker, engine.AsyncClient(await listening(broker), token=ANN) as ann:
        with pytest.raises(AuthorizationError):
            await ann.producer("orders")
        assert broker.rights.denials
    lines = (tmp_path / "audit").read_text()
    assert '"role": "ann"' in lines
    assert '"resource": "public/default/orders"' in lines
    assert ANN not in lines


@pytest.mark.parametrize("text", ["ann", "ann: md5:00", "a/b: sha256:" + "0" * 64, "ann: sha256:" + "0" * 63])
def test_a_malformed_line_is_refused_by_its_number(text):
    with pytest.raises(InvalidConfigurationError, match="line 2"):
        parse("# roles\n" + text, "roles")


def test_a_token_is_of_one_role():
    with pytest.raises(InvalidConfigurationError, match="another role"):
        parse(line_of("a", "t") + "\n" + line_of("b", "t"), "roles")


async def test_a_client_is_no_broker(start):
    async with start() as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        await peer.hello(token=ROOT)
        with pytest.raises(EngineError) as refused:
            await peer.ask(Command.BROKER_CALL, target="segment", method="open")
        assert isinstance(refused.value, AuthorizationError)


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        (None, "/admin/v2/namespaces", 401),
        (ANN, "/admin/v2/namespaces", 200),
        (ANN, "/admin/v2/scalable/public/default", 403),
        (ANN, "/admin/v2/scalable/public/default/nothing", 403),  # and not 404
        (ANN, "/metrics", 403),
        (ROOT, "/metrics", 200),
        (ROOT, "/admin/v2/scalable/public/default/nothing", 404),
        (ANN, "/openapi.json", 200),
        (None, "/health", 200),
    ],
)
async def test_the_http_api_asks_the_same_table(start, token, path, status):
    async with start() as broker, aiohttp.ClientSession() as session:
        await broker.serve_admin("127.0.0.1", 0)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.get(broker.admin_url + path, headers=headers) as answer:
            assert answer.status == status


async def test_a_list_has_what_the_role_may_look_up(start):
    async with start() as broker, aiohttp.ClientSession() as session:
        await broker.serve_admin("127.0.0.1", 0)
        for topic in ("a/one/t", "a/two/t", "b/one/t"):
            await broker.admin.create_topic(topic)
        await granted(broker, "a/two", "ann", "consume")
        await granted(broker, "b", "bob", "lookup")
        for token, names in ((ANN, ["a/two"]), (BOB, ["b/one"]), (ROOT, ["a/one", "a/two", "b/one"])):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(broker.admin_url + "/admin/v2/namespaces", headers=headers) as answer:
                assert await answer.json() == names


@pytest.fixture
async def both(start):
    """A broker, and clients of ann and bob, who may produce and consume."""
    async with start() as broker:
        url = await listening(broker)
        for role in ("ann", "bob"):
            await granted(broker, "public/default", role, "produce", "consume")
        async with engine.AsyncClient(url, token=ANN) as ann, engine.AsyncClient(url, token=BOB) as bob:
            yield broker, ann, bob


async def test_a_producer_name_is_the_roles_that_used_it_first(both):
    """Else messages of the one would count as sent, once the other has sent under its name."""
    broker, ann, bob = both
    mine = await ann.producer("orders", name="p")
    await mine.send(b"x")
    for attached in (True, False):
        with pytest.raises(AuthorizationError, match="belongs to another role"):
            await (await bob.producer("orders", name="p")).send(b"z")
        if attached:
            await mine.close()
    (hosted,) = broker.segments
    hosted.access.bound.clear()  # as another broker, or this one after a restart, knows it
    with pytest.raises(AuthorizationError, match="belongs to another role"):
        await (await bob.producer("orders", name="p")).send(b"z")
    await (await ann.producer("orders", name="p")).send(b"y")
    await (await bob.producer("orders", name="q")).send(b"y")
    await (await bob.producer("others", name="p")).send(b"y")  # names are of one topic


async def test_a_producer_that_is_refused_leaves_no_record_of_its_name(both):
    broker, ann, bob = both
    topic = TopicName.parse("topic://public/default/orders")
    mine = await ann.producer("orders", name="p", access_mode="exclusive")
    await mine.send(b"x")
    for mode in ("exclusive", "shared"):
        with pytest.raises(ProducerBusyError):
            await (await bob.producer("orders", name="q", access_mode=mode)).send(b"y")
    with pytest.raises(AuthorizationError, match="admin is needed to fence"):
        await bob.producer("orders", name="q", access_mode="exclusive_with_fencing")
    assert await broker.metadata.get(keys.producer(topic, "p")) is not None
    assert await broker.metadata.get(keys.producer(topic, "q")) is None
    await mine.close()
    theirs = await bob.producer("orders", name="q", access_mode="wait_for_exclusive")
    await theirs.send(b"y")
    assert await broker.metadata.get(keys.producer(topic, "q")) is not None


async def test_a_role_has_a_bounded_number_of_producer_names_in_a_topic(both, monkeypatch):
    monkeypatch.setattr(producer_names, "NAMES_MAX", 2)
    _, ann, bob = both
    for name in ("a", "b", None, None, "a"):
        producer = await ann.producer("orders", name=name, access_mode="exclusive")
        await producer.close()
    with pytest.raises(LimitExceededError, match="got 3 names of producers of the role 'ann'") as refused:
        await ann.producer("orders", name="c", access_mode="exclusive")
    assert (refused.value.resource, refused.value.value) == ("public/default/orders", 2)
    for topic in ("orders", "others"):
        await (await bob.producer(topic, name="c", access_mode="exclusive")).close()


async def test_what_administers_the_topic_takes_a_name_over(both):
    broker, ann, bob = both
    mine = await ann.producer("orders", name="p")
    await mine.send(b"x")
    await mine.close()
    await granted(broker, "public/default/orders", "bob", "admin")
    theirs = await bob.producer("orders", name="p")
    await theirs.send(b"y")
    await theirs.close()
    with pytest.raises(AuthorizationError, match="belongs to another role"):
        await (await ann.producer("orders", name="p")).send(b"z")
    await broker.admin.delete_topic("orders")
    await (await ann.producer("orders", name="p")).send(b"z")  # names end with their topic


async def test_a_role_does_not_fence_another_ones_producer(both):
    broker, ann, bob = both
    mine = await ann.producer("orders", access_mode="exclusive")
    await mine.send(b"x")
    with pytest.raises(AuthorizationError, match="admin is needed to fence"):
        await bob.producer("orders", access_mode="exclusive_with_fencing")
    await mine.send(b"y")
    await granted(broker, "public/default", "bob", "admin")
    theirs = await bob.producer("orders", access_mode="exclusive_with_fencing")
    await theirs.send(b"z")


async def test_a_role_does_not_take_over_the_name_of_another_ones_consumer(both):
    _, ann, bob = both
    await ann.producer("orders")
    for kind in ("stream_consumer", "checkpoint_consumer"):
        own = (
            {"subscription": "s"} if kind == "stream_consumer" else {"group": "g", "start": engine.Checkpoint.latest()}
        )
        mine = await getattr(ann, kind)("orders", name="c", **own)
        with pytest.raises(AuthorizationError, match="the consumer name 'c' is in use by another role"):
            await getattr(bob, kind)("orders", name="c", **own)
        await mine.close()


async def test_another_roles_transaction_is_not_added_to(both):
    broker, ann, _ = both
    producer = await ann.producer("orders")
    await producer.send(b"x")
    peers = []
    for token in (ANN, BOB):
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        await peer.hello(token=token)
        peers.append(peer)
    mine, theirs = peers
    ident = (await mine.ask(Command.NEW_TXN, timeout=60.0))["result"]["id"]
    segment = str(next(iter(broker.segments)).name)
    for peer in (mine, theirs):
        await peer.ask(
            Command.PRODUCER, topic=segment, producer_id=1, producer_name=f"p-{id(peer)}", access_mode="shared"
        )
        await peer.ask(
            Command.SUBSCRIBE, topic=segment, consumer_id=2, subscription=f"s-{id(peer)}", consumer_name="c",
            mode="queue", initial_position="earliest",
        )  # fmt: skip
    for known in (False, True):  # the transaction is looked up, or is in memory
        send(theirs, 1, [entry(0, [b"z"], ident, producer=f"p-{id(theirs)}")], ident)
        _, refused, _ = await theirs.take(Command.SEND_ERROR, Command.CLOSE_PRODUCER)
        assert refused["code"] == TransactionNotFoundError.code
        if not known:
            send(mine, 1, [entry(0, [b"y"], ident, producer=f"p-{id(mine)}")], ident)
            await mine.take(Command.SEND_RECEIPT)
            fields = {"producer_id": 1, "producer_name": f"p-{id(theirs)}", "access_mode": "shared"}
            await theirs.ask(Command.PRODUCER, topic=segment, **fields)
        with pytest.raises(TransactionNotFoundError):
            await theirs.ask(Command.ACK, consumer_id=2, ack_type="individual", ranges=[[0, 0]], transaction=ident)
    with pytest.raises(TransactionNotFoundError):
        await theirs.ask(Command.END_TXN, id=ident, action="commit", sent=0)
    assert (await mine.ask(Command.END_TXN, id=ident, action="commit", sent=1))["result"]["state"] == "COMMITTED"


async def test_dead_letters_need_the_right_to_write_there(both):
    broker, ann, _ = both
    await granted(broker, "a/b/letters", "ann", "lookup")
    await broker.admin.create_topic("a/b/letters")
    producer = await ann.producer("orders")
    await producer.send(b"x")
    dead = engine.DeadLetter(0, topic="a/b/letters")
    consumer = await ann.queue_consumer("orders", "s", initial_position="earliest", dead_letter=dead)
    denials = broker.rights.denials
    await consumer.negative_acknowledge(await consumer.receive())
    await until(lambda: broker.rights.denials > denials)
    assert consumer.statistics().dead_lettered == 0
    await granted(broker, "a/b/letters", "ann", "produce")
    await until(lambda: consumer.statistics().dead_lettered == 1)


async def test_dead_letters_take_no_names_and_one_transaction_at_a_time(both, monkeypatch):
    """A record of each name would stay for ever, and their number is bounded."""
    monkeypatch.setattr(producer_names, "NAMES_MAX", 2)
    broker, ann, _ = both
    await broker.admin.set_limits("role:ann", {"open_transactions_max": 1})
    producer = await ann.producer("orders")
    for n in range(8):
        await producer.send(b"%d" % n)
    consumer = await ann.queue_consumer(
        "orders", "s", initial_position="earliest", nack_backoff=0, dead_letter=engine.DeadLetter(0)
    )
    for _ in range(8):
        await consumer.negative_acknowledge(await consumer.receive(), reason="of no use")
    await until(lambda: consumer.statistics().dead_lettered == 8)
    assert await names_of(broker, "orders-DLQ") == []


async def test_dead_letters_of_a_run_take_no_names(both, monkeypatch):
    monkeypatch.setattr(producer_names, "NAMES_MAX", 2)
    broker, ann, _ = both
    producer = await ann.producer("orders")
    for n in range(8):
        await producer.send(b"%d" % n)
    consumer = await ann.stream_consumer("orders", "s", initial_position="earliest")
    given_up = []

    async def fail(message):
        given_up.append(message.value)
        if len(given_up) == 8:
            consumer.stop_run()
        raise ValueError

    await asyncio.wait_for(consumer.run(fail, max_attempts=1, dead_letter="orders-DLQ"), 60)
    letters = await ann.queue_consumer("orders-DLQ", "s", initial_position="earliest")
    assert sorted([(await letters.receive(60)).value for _ in range(8)]) == sorted(given_up)
    assert await names_of(broker, "orders-DLQ") == []


async def names_of(broker, topic):
    """Records of names of producers."""
    begin = keys.producer(TopicName.parse(topic), "x").removesuffix("x")
    return await broker.metadata.list_keys(begin, begin + "\x7f")


async def test_a_transaction_is_its_roles(start):
    async with start() as broker:
        url = await listening(broker)
        peers = []
        for token in (ANN, BOB, ROOT):
            peer = await Peer.connect(broker, url, hello=False)
            await peer.hello(token=token)
            peers.append(peer)
        ann, bob, root = peers
        begun = await ann.ask(Command.NEW_TXN, timeout=60.0)
        named = await ann.ask(Command.NEW_TXN, timeout=60.0, name="nightly")
        for ident in (begun["result"]["id"], named["result"]["id"]):
            with pytest.raises(TransactionNotFoundError):
                await bob.ask(Command.TXN_STATE, id=ident)
            for action in ("commit", "abort"):
                with pytest.raises(TransactionNotFoundError):
                    await bob.ask(Command.END_TXN, id=ident, action=action)
        of_bob = await bob.ask(Command.NEW_TXN, timeout=60.0, name="nightly")  # its own: no refusal tells of ann's
        again = [await one.ask(Command.NEW_TXN, timeout=60.0, name="nightly") for one in (ann, bob, root)]
        assert [one["result"]["id"] == named["result"]["id"] for one in again] == [True, False, False]
        assert again[1]["result"]["id"] == of_bob["result"]["id"] != again[2]["result"]["id"]
        await bob.ask(Command.END_TXN, id=of_bob["result"]["id"], action="commit")
        states = [
            (await one.ask(Command.NEW_TXN, timeout=60.0, name="nightly"))["result"]["state"] for one in (ann, bob)
        ]
        assert states == ["OPEN", "COMMITTED"], "and what becomes of one is not said of the other"
        assert (await root.ask(Command.TXN_STATE, id=begun["result"]["id"]))["result"]["state"] == "OPEN"
        ended = await ann.ask(Command.END_TXN, id=begun["result"]["id"], action="commit")
        assert ended["result"]["state"] == "COMMITTED"


async def test_administrative_acts_are_audited_and_open_pages_say_yes_or_no(start, tmp_path):
    async with start() as broker, aiohttp.ClientSession() as session:
        await broker.serve_admin("127.0.0.1", 0)
        headers = {"Authorization": f"Bearer {ROOT}"}
        url = broker.admin_url + "/admin/v2/grants/public%2Fdefault/ann"
        async with session.put(
            aiohttp.client.URL(url, encoded=True), headers=headers, json={"rights": ["lookup"]}
        ) as a:
            assert a.status == 204
        async with session.get(broker.admin_url + "/ready") as answer:
            assert await answer.json() == {"ready": True, "broker": "", "reasons": []}
        async with session.get(broker.admin_url + "/health") as answer:
            assert await answer.json() == {"status": "ok", "broker": ""}
    (line,) = (json.loads(line) for line in (tmp_path / "audit").read_text().splitlines())
    assert (line["role"], line["right"], line["resource"], line["allowed"]) == ("root", "admin", "public/default", True)


async def test_which_roles_a_tenant_has_is_told_to_what_may_look_it_up(start, tmp_path):
    """Others get one refusal for all, that is a denial, counted and audited; nothing is granted."""
    async with start() as broker:
        await broker.serve_admin("127.0.0.1", 0)
        await broker.admin.create_tenant("t", roles=["ann", "bob", "cleo"])
        await granted(broker, "t", "ann", "admin")
        await granted(broker, "t/n", "bob", "admin")
        ann, bob = (HttpAdmin(broker.admin_url, token=token, timeout=60.0) for token in (ANN, BOB))
        try:
            with pytest.raises(InvalidArgumentError, match="must be one of those of the tenant t, got 'dora'"):
                await ann.grant("t/n", "dora", ["produce"])
            with pytest.raises(AuthorizationError) as looked_up:
                await bob.get_tenant("t")
            denials = broker.rights.denials
            for resource in ("t/n", "t/n/topic"):
                with pytest.raises(AuthorizationError) as granting:
                    await bob.grant(resource, "dora", ["produce"])
                assert str(granting.value) == str(looked_up.value)
            assert broker.rights.denials == denials + 2
            await bob.grant("t/n", "cleo", ["produce"])
            assert [one["role"] for one in await broker.admin.list_grants("t")] == ["ann", "bob", "cleo"]
        finally:
            await ann.close()
            await bob.close()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    refused = [line for line in lines if line["request"] == "grant to 'dora'"]
    assert [(line["role"], line["resource"], line["allowed"]) for line in refused] == [("bob", "t", False)] * 2


async def test_grants_are_enforced_after_a_restart(start):
    """What was granted is allowed, what was not or was taken away is denied, from the first request on."""
    async with start() as broker:
        await broker.admin.create_topic("orders")
        await broker.admin.grant("public/default/orders", "ann", ["produce"])
        await broker.admin.grant("public/default", "bob", ["consume"], subscription_prefix="bob-")
        await broker.admin.grant("public", "bob", ["produce"])
        await broker.admin.revoke("public", "bob")
        async with engine.AsyncClient(await listening(broker), token=ANN) as ann:
            await (await ann.producer("orders", name="p")).send(b"before")
    async with start() as broker, aiohttp.ClientSession() as session:
        url = await listening(broker)
        await broker.serve_admin("127.0.0.1", 0)
        stats = broker.admin_url + "/admin/v2/scalable/public/default/orders/stats"
        for token, status in ((ANN, 200), (BOB, 200), (ROOT, 200), ("guess", 401)):
            async with session.get(stats, headers={"Authorization": f"Bearer {token}"}) as answer:
                assert answer.status == status
        async with session.delete(stats[:-6], headers={"Authorization": f"Bearer {ANN}"}) as answer:
            assert answer.status == 403
        async with engine.AsyncClient(url, token=ANN) as ann, engine.AsyncClient(url, token=BOB) as bob:
            await (await ann.producer("orders", name="p")).send(b"after")
            for client, subscription in ((ann, "bob-s"), (bob, "s")):
                with pytest.raises(AuthorizationError):
                    await client.queue_consumer("orders", subscription)
            with pytest.raises(AuthorizationError, match="produce"):
                await (await bob.producer("orders")).send(b"x")
            consumer = await bob.queue_consumer("orders", "bob-s", initial_position="earliest")
            assert [(await consumer.receive()).value for _ in range(2)] == [b"before", b"after"]
            await granted(broker, "public", "bob", "produce")
            with pytest.raises(AuthorizationError, match="'p' belongs to another role"):
                await (await bob.producer("orders", name="p")).send(b"x")


async def test_no_content_of_a_message_is_in_the_audit_log(start, tmp_path):
    """Of some that are stored, read and skipped, and of one that is denied."""
    value, key, name, more = "v4lue-of-it", "k3y-of-it", "n4me-of-it", "pr0perty-of-it"
    said = {"key": key, "properties": {name: more}}
    async with start() as broker:
        url = await listening(broker)
        await broker.serve_admin("127.0.0.1", 0)
        async with engine.AsyncClient(url, token=ROOT) as root, engine.AsyncClient(url, token=ANN) as ann:
            await granted(broker, "public/default/orders", "ann", "consume")
            producer = await root.producer("orders")
            for _ in range(2):
                await producer.send(value.encode(), **said)
            async with await root.queue_consumer("orders", "s", initial_position="earliest") as consumer:
                await consumer.negative_acknowledge(await consumer.receive())
            await root.admin.skip_messages("orders", "s", 0, 0)
            with pytest.raises(AuthorizationError):
                await (await ann.producer("orders")).send(value.encode(), **said)
    text = (tmp_path / "audit").read_text()
    assert '"allowed": false' in text
    assert '"allowed": true' in text
    assert not [word for word in (value, key, name, more) if word in text]
