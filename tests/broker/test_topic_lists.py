"""Topic lists on the wire: snapshots, changes, filters, hashes; one watch of the store for all who look."""

from __future__ import annotations

from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.session import topic_lists
from engine.errors import InvalidArgumentError
from engine.limits import TOPIC_PATTERN_SIZE_MAX
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer

NS = "public/default"
UPDATE = Command.WATCH_TOPIC_LIST_UPDATE


def full(*names: str) -> list[str]:
    return [f"topic://public/default/{name}" for name in names]


async def watch(peer: Peer, namespace: str = NS, **fields: Any) -> tuple[int, dict[str, Any]]:
    session = peer.next_id()
    header = {"properties": None, "pattern": None, "hash": None, **fields}
    return session, await peer.ask(Command.WATCH_TOPIC_LIST, session_id=session, namespace=namespace, **header)


async def get(peer: Peer, **fields: Any) -> list[str]:
    header = {"namespace": NS, "properties": None, "pattern": None, "after": None, **fields}
    found: list[str] = []
    while True:
        page = (await peer.ask(Command.GET_TOPICS_OF_NAMESPACE, **header))["result"]
        found += page["topics"]
        if not page["more"]:
            return found
        header["after"] = found[-1]


async def change(peer: Peer, session: int) -> dict[str, Any]:
    return (await peer.take(UPDATE, session_id=session))[1]


async def put_properties(broker: Broker, name: str, properties: dict[str, str]) -> None:
    """As whoever changes them does: the record is replaced."""
    topic, resources = TopicName.parse(name), broker.service._resources
    record = await resources.load_topic(topic)
    assert record is not None
    layout = SegmentLayout.from_metadata({**record.layout.to_metadata(), "properties": properties})
    await resources.save_topic(topic, layout, record.version)


class TestSnapshot:
    async def test_names_are_sorted_and_of_one_namespace(self, broker, connect):
        for topic in ("b", "a", "topic://public/other/c"):
            await broker.service.create_topic(topic)
        peer = await connect()
        _, first = await watch(peer)
        assert first["snapshot"] == full("a", "b")
        assert len(first["born"]) == 2
        assert first["removed"] == first["added"] == []
        assert first["more"] is False
        assert await get(peer) == full("a", "b")

    async def test_a_namespace_without_topics(self, connect):
        _, first = await watch(await connect(), "no/such")
        assert first["snapshot"] == []

    async def test_a_large_list_comes_in_parts_of_bounded_size(self, broker, connect, monkeypatch):
        monkeypatch.setattr(topic_lists, "TOPICS_PER_FRAME_MAX", 10)
        names = [f"t{i:05}" for i in range(25)]
        for name in names:
            await broker.service.create_topic(name)
        peer = await connect()
        session, last = await watch(peer)
        parts = [h for c, h, _ in peer.frames if c is UPDATE and h["session_id"] == session] + [last]
        assert [len(part["snapshot"]) for part in parts] == [10, 10, 5]
        assert [part["more"] for part in parts] == [True, True, False]
        assert [name for part in parts for name in part["snapshot"]] == full(*names)
        assert await get(peer) == full(*names)

    async def test_a_topic_that_is_being_deleted_is_gone(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        session, _ = await watch(peer)
        await broker.service.delete_topic("a")
        assert (await change(peer, session))["removed"] == full("a")
        assert await get(peer) == []


class TestChanges:
    async def test_semantics_40_what_is_made_and_deleted_is_told(self, broker, connect):
        peer = await connect()
        session, first = await watch(peer)
        await broker.service.create_topic("a")
        made = await change(peer, session)
        assert (made["snapshot"], made["removed"], made["added"]) == (None, [], full("a"))
        await broker.service.delete_topic("a")
        gone = await change(peer, session)
        assert (gone["removed"], gone["added"]) == (full("a"), [])
        assert gone["hash"] == first["hash"] != made["hash"]

    async def test_semantics_40_deleted_and_made_anew_is_reported_as_both(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        session, first = await watch(peer)
        await broker.service.delete_topic("a")
        await broker.service.create_topic("a")
        removed, added, told = [], [], first
        while not added:
            told = await change(peer, session)
            removed += told["removed"]
            added += told["added"]
        assert (removed, added) == (full("a"), full("a"))
        assert told["born"] != first["born"]
        assert told["hash"] != first["hash"]

    async def test_one_that_comes_and_goes_unseen_is_not_told(self, broker, connect):
        peer = await connect()
        session, _ = await watch(peer)
        held = next(iter(broker.connections))
        held.pause_writing()
        await broker.service.create_topic("a")
        await broker.service.delete_topic("a")
        await broker.service.create_topic("b")
        held.resume_writing()
        told = await change(peer, session)
        assert (told["removed"], told["added"]) == ([], full("b"))

    async def test_a_split_is_no_change_of_the_list(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        session, _ = await watch(peer)
        await broker.service.split_segment("a", 0)
        await broker.service.create_topic("b")
        assert (await change(peer, session))["added"] == full("b")

    async def test_closed_it_hears_nothing_more(self, broker, connect):
        peer = await connect()
        one, _ = await watch(peer)
        two, _ = await watch(peer)
        peer.send(Command.WATCH_TOPIC_LIST_CLOSE, {"session_id": one})
        await get(peer)  # behind it
        await broker.service.create_topic("a")
        await change(peer, two)
        assert not [h for c, h, _ in peer.frames if c is UPDATE]


class TestHash:
    async def test_semantics_40_a_matching_hash_means_no_snapshot(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        _, first = await watch(peer)
        again = await connect()
        session, second = await watch(again, hash=first["hash"])
        assert second["snapshot"] is None
        assert second["hash"] == first["hash"]
        assert second["removed"] == second["added"] == []
        await broker.service.create_topic("b")
        assert (await change(again, session))["added"] == full("b")

    async def test_another_hash_means_a_snapshot(self, broker, connect):
        peer = await connect()
        _, first = await watch(peer)
        await broker.service.create_topic("a")
        _, second = await watch(peer, hash=first["hash"])
        assert second["snapshot"] == full("a")

    async def test_another_topic_of_the_name_has_another_hash(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        _, first = await watch(peer)
        await broker.service.delete_topic("a")
        await broker.service.create_topic("a")
        _, second = await watch(peer, hash=first["hash"])
        assert second["snapshot"] == full("a")

    async def test_it_survives_a_restart(self, start_broker):
        async with start_broker() as broker:
            await broker.service.create_topic("a")
            _, first = await watch(await Peer.connect(broker))
        async with start_broker() as broker:
            _, second = await watch(await Peer.connect(broker), hash=first["hash"])
        assert second["snapshot"] is None


class TestFilters:
    async def test_all_of_the_properties(self, broker, connect):
        await broker.service.create_topic("a", properties={"team": "x", "kind": "log"})
        await broker.service.create_topic("b", properties={"team": "x"})
        await broker.service.create_topic("c")
        peer = await connect()
        _, first = await watch(peer, properties={"team": "x"})
        assert first["snapshot"] == full("a", "b")
        assert await get(peer, properties={"team": "x", "kind": "log"}) == full("a")

    async def test_who_begins_to_match_comes_and_who_stops_leaves(self, broker, connect):
        await broker.service.create_topic("a")
        peer = await connect()
        session, first = await watch(peer, properties={"team": "x"})
        await put_properties(broker, "a", {"team": "x"})
        assert (await change(peer, session))["added"] == full("a")
        await put_properties(broker, "a", {"team": "y"})
        gone = await change(peer, session)
        assert gone["removed"] == full("a")
        assert gone["hash"] == first["hash"]

    async def test_a_pattern_matches_the_whole_of_the_own_name(self, broker, connect):
        for name in ("orders", "orders-eu", "old-orders"):
            await broker.service.create_topic(name)
        peer = await connect()
        _, first = await watch(peer, pattern="orders.*")
        assert first["snapshot"] == full("orders", "orders-eu")
        assert await get(peer, pattern="orders") == full("orders")

    @pytest.mark.parametrize(
        "pattern", ["(", r"(a)\1", "(?=a)b", "((a{500}){500}){500}", "a" * (TOPIC_PATTERN_SIZE_MAX + 1)]
    )
    async def test_a_pattern_that_cannot_be_is_refused(self, connect, pattern):
        peer = await connect()
        with pytest.raises(InvalidArgumentError, match="pattern"):
            await watch(peer, pattern=pattern)
        with pytest.raises(InvalidArgumentError, match="pattern"):
            await get(peer, pattern=pattern)

    async def test_a_hostile_pattern_takes_linear_time(self, broker, connect):
        """With backtracking this would outlive the test's time limit."""
        await broker.service.create_topic("a" * 200 + "!")
        assert await get(await connect(), pattern="(a*)*(a|aa)+$") == []

    @pytest.mark.parametrize("fields", [{"namespace": "x"}, {"namespace": "a/b/c"}, {"properties": {"a": 1}}])
    async def test_bad_fields_are_named(self, connect, fields):
        peer = await connect()
        with pytest.raises(InvalidArgumentError, match=next(iter(fields))):
            await watch(peer, **fields)
        with pytest.raises(InvalidArgumentError, match=next(iter(fields))):
            await get(peer, **fields)


class TestSharing:
    async def test_one_watch_of_the_store_serves_all_sessions_of_a_namespace(self, broker, connect, monkeypatch):
        begun: list[str] = []
        metadata = broker.service._resources.metadata
        original = metadata.watch_index
        monkeypatch.setattr(metadata, "watch_index", lambda *a: begun.append(a[1]) or original(*a))
        peers = [await connect() for _ in range(3)]
        sessions = [(p, (await watch(p, pattern=q))[0]) for p in peers for q in (None, "a.*")]
        await broker.service.create_topic("a")
        for peer, session in sessions:
            assert (await change(peer, session))["added"] == full("a")
        assert begun == ["public/default/"]

    async def test_a_namespace_that_nobody_looks_at_is_forgotten(self, broker, connect):
        peer = await connect()
        session, _ = await watch(peer)
        lists = broker.service.topic_lists
        known = lists._namespaces[NS]
        lists._rested(NS, known)
        assert lists._namespaces[NS] is known
        peer.send(Command.WATCH_TOPIC_LIST_CLOSE, {"session_id": session})
        await get(peer)
        lists._rested(NS, known)
        assert not lists._namespaces
        await broker.service.create_topic("a")
        assert await get(peer) == full("a")

    async def test_a_lost_connection_ends_its_sessions(self, broker, connect):
        peer, other = await connect(), await connect()
        await watch(peer)
        known = broker.service.topic_lists._namespaces[NS]
        peer.stream.abort()
        while len(broker.connections) > 1:
            await get(other, namespace="else/where")
        assert known.unused
