"""How clients follow topic lists: parts, hashes, reconnects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.client import TopicsChanged
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.wire.commands import Command
from tests.kit.fake_broker import URL, FakeBroker, FakeConnection

UPDATE = Command.WATCH_TOPIC_LIST_UPDATE


class ListBroker(FakeBroker):
    """Serves a list that the test writes; the hash is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, int] = {}
        self.hash = "h0"
        self.watching: list[tuple[FakeConnection, int]] = []
        self.pages = 2

    def change(self, new_hash: str, removed: list[str], added: dict[str, int]) -> None:
        """Tell everybody."""
        for name in removed:
            self.topics.pop(name, None)
        self.topics |= added
        self.hash = new_hash
        for connection, session in self.watching:
            if not connection.lost:
                tell(connection, session, hash=new_hash, removed=removed, added=[*added], born=[*added.values()])


def tell(connection: FakeConnection, session: int, **fields: Any) -> None:
    header = {"request_id": None, "snapshot": None, "removed": [], "added": [], "born": [], "more": False}
    connection.stream.send(UPDATE, {**header, "session_id": session, **fields})


def watch_topic_list(self: Any, header: dict[str, Any], payload: memoryview) -> None:
    broker, session = self.broker, header["session_id"]
    broker.watching.append((self, session))
    if header["hash"] == broker.hash:
        tell(self, session, hash=broker.hash, request_id=header["request_id"])
        return
    names = [*broker.topics]
    if not names:
        tell(self, session, hash=broker.hash, snapshot=[], request_id=header["request_id"])
    for at in range(0, len(names), broker.pages):
        part, last = names[at : at + broker.pages], at + broker.pages >= len(names)
        born = [broker.topics[name] for name in part]
        ending = {"hash": broker.hash, "request_id": header["request_id"]} if last else {"hash": "", "more": True}
        tell(self, session, snapshot=part, born=born, **ending)


def watch_topic_list_close(self: Any, header: dict[str, Any], payload: memoryview) -> None:
    self.broker.watching = [w for w in self.broker.watching if w[1] != header["session_id"]]


def get_topics_of_namespace(self: Any, header: dict[str, Any], payload: memoryview) -> None:
    names = [name for name in sorted(self.broker.topics) if name > (header["after"] or "")]
    page = names[: self.broker.pages]
    self.answer(header, result={"topics": page, "more": len(page) < len(names)})


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> ListBroker:
    for handler in (watch_topic_list, watch_topic_list_close, get_topics_of_namespace):
        monkeypatch.setattr(FakeConnection, handler.__name__, handler, raising=False)
    return ListBroker()


async def test_a_snapshot_in_parts_counts_as_one(lists: ListBroker):
    lists.topics = dict.fromkeys("abcde", 1)
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        assert await watch.next_change() == TopicsChanged((), tuple("abcde"))
        lists.change("h1", ["a"], {"f": 2})
        assert await watch.next_change() == TopicsChanged(("a",), ("f",))
        assert watch.topics == list("bcdef")


async def test_semantics_40_after_a_reconnect_the_same_hash_brings_nothing(lists: ListBroker):
    lists.topics = dict.fromkeys("ab", 1)
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        await watch.next_change()
        lists.cut()
        await lists.until(lambda: len(lists.of(Command.WATCH_TOPIC_LIST)) == 2)
        assert [asked["hash"] for asked in lists.of(Command.WATCH_TOPIC_LIST)] == [None, "h0"]
        assert await watch.next_change(timeout=0.01) is None
        lists.change("h1", [], {"c": 1})
        assert await watch.next_change() == TopicsChanged((), ("c",))


async def test_semantics_40_a_snapshot_replaces(lists: ListBroker):
    """What is not in it is gone; what has another birth is another topic."""
    lists.topics = dict.fromkeys("abc", 1)
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        await watch.next_change()
        lists.topics, lists.hash = {"b": 1, "c": 5, "d": 6}, "h9"
        lists.cut()
        assert await watch.next_change() == TopicsChanged(("a", "c"), ("c", "d"))


async def test_half_an_update_counts_for_nothing(lists: ListBroker):
    lists.topics = {"a": 1}
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        await watch.next_change()
        tell(*lists.watching[0], hash="", removed=["a"], more=True)
        await lists.settle()
        assert watch.topics == ["a"]
        lists.cut()
        await lists.until(lambda: len(lists.of(Command.WATCH_TOPIC_LIST)) == 2)
        assert lists.of(Command.WATCH_TOPIC_LIST)[1]["hash"] == "h0"
        assert watch.topics == ["a"]


async def test_changes_that_nobody_asked_for_come_as_one(lists: ListBroker):
    lists.topics = {"a": 1, "b": 1}
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        await watch.next_change()
        lists.change("h1", [], {"c": 1})
        lists.change("h2", ["a", "c"], {})
        lists.change("h3", ["b"], {"b": 2})
        lists.change("h4", [], {"a": 9})
        await lists.settle()
        assert await watch.next_change() == TopicsChanged(("a", "b"), ("a", "b"))


async def test_a_malformed_update_ends_the_connection_and_not_the_watch(lists: ListBroker):
    lists.topics = {"a": 1}
    async with lists.client() as client, await client.watch_topics("n/s") as watch:
        await watch.next_change()
        tell(*lists.watching[0], hash="h1", added=["b"], born=[])
        await lists.until(lambda: len(lists.of(Command.WATCH_TOPIC_LIST)) == 2)
        lists.change("h2", [], {"c": 1})
        assert await watch.next_change() == TopicsChanged((), ("c",))


async def test_closing_tells_the_broker_and_whoever_waits(lists: ListBroker):
    async with lists.client() as client:
        watch = await client.watch_topics("n/s")
        await watch.next_change()
        waiting = asyncio.ensure_future(watch.next_change())
        await lists.settle()
        await watch.close()
        await watch.close()
        with pytest.raises(AlreadyClosedError):
            await waiting
        await lists.until(lambda: not lists.watching)
        assert "closed" in repr(watch)


async def test_lists_come_page_by_page(lists: ListBroker):
    lists.topics = dict.fromkeys("edcba", 1)
    async with lists.client() as client:
        assert await client.list_topics("n/s") == list("abcde")
        with pytest.raises(InvalidArgumentError):
            await client.list_topics("n")
    assert URL  # nobody else was asked
