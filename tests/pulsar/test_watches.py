"""Lists of topics that clients of Apache Pulsar follow: the watches of both kinds by their frames, and patterns."""

from __future__ import annotations

import re
import sys
from typing import Any

import pulsar
import pytest

import engine
from engine.aio.memory_limiter import AsyncDualMemoryLimiter
from engine.errors import UnsupportedError
from engine.limits import TOPICS_PER_FRAME_MAX
from engine.pulsar import watches
from engine.pulsar.watches import HeldList, own_pattern
from tests.pulsar.conftest import EARLIEST, take
from tests.pulsar.raw import Raw, greeted


async def told(raw: Raw, heard: str, added: set[str], removed: set[str]) -> None:
    """Updates come until these have been added and removed, and nothing else."""
    here: tuple[set[str], set[str]] = set(), set()
    while here != (added, removed):
        update = await raw.heard(heard)
        diff = update.diff if heard == "watch_topics_update" else update
        here[0].update(diff.added)
        here[1].update(diff.removed)
        assert here[0] <= added, here
        assert here[1] <= removed, here


async def test_a_namespace_of_scalable_topics_is_followed(served: engine.Engine) -> None:
    topics = [f"topic://acme/watched/t{number}" for number in range(3)]
    served.admin.create_topic(topics[0], properties={"team": "x"})
    served.admin.create_topic("persistent://acme/watched/classic")
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("watch_topics", watch=7, namespace="acme/watched")
        update = await raw.heard("watch_topics_update")
        assert (update.watch, update.HasField("snapshot"), list(update.snapshot.topics)) == (7, True, topics[:1])
        filters = [{"key": "team", "value": "x"}]
        await raw.say_command("watch_topics", watch=8, namespace="acme/watched", filters=filters)
        assert list((await raw.heard("watch_topics_update")).snapshot.topics) == topics[:1]
        await raw.say_command("watch_topics_close", watch=8)
        served.admin.create_topic(topics[1])
        await told(raw, "watch_topics_update", {topics[1]}, set())
        served.admin.create_topic("persistent://acme/watched/other")
        served.admin.create_topic(topics[2])
        served.admin.delete_topic(topics[0])
        await told(raw, "watch_topics_update", {topics[2]}, {topics[0]})
        await raw.say_command("watch_topics", watch=7, namespace="acme/watched")
        assert "must be unused" in (await raw.heard("watch_topics_update")).message
        await raw.say_command("watch_topics", watch=9, namespace="acme")
        assert (await raw.heard("watch_topics_update")).error


async def test_classic_topics_are_followed_by_a_pattern(served: engine.Engine) -> None:
    def name(local: str) -> str:
        return f"persistent://acme/patterns/{local}"

    served.admin.create_topic(name("a1"))
    served.admin.create_topic("topic://acme/patterns/a2")
    async with Raw(served) as raw:
        await greeted(raw)
        watch: dict[str, Any] = {"namespace": "acme/patterns", "pattern": name("a.*")}
        await raw.say_command("watch_topic_list", request=1, watcher=3, **watch)
        found = await raw.heard("watch_topic_list_success")
        assert (found.request, found.watcher, list(found.topics), bool(found.hash)) == (1, 3, [name("a1")], True)
        served.admin.create_topic(name("b"))
        served.admin.create_topic(name("a2"))
        served.admin.delete_topic(name("a1"))
        await told(raw, "watch_topic_update", {name("a2")}, {name("a1")})
        await raw.say_command("watch_topic_list_close", request=2, watcher=3)
        assert (await raw.heard("success")).request == 2
        await raw.say_command("watch_topic_list", request=3, watcher=3, **{**watch, "pattern": "acme/other/a.*"})
        heard = await raw.hear()
        assert heard is not None
        assert (heard[0], heard[1].request) == ("error", 3)


async def test_without_the_package_for_patterns_lists_are_given_and_watches_refused(
    served: engine.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hears that goes on with lists."""
    for name in ("topic://acme/plain/a", "persistent://acme/plain/b", "topic://acme/plain/z"):
        served.admin.create_topic(name)
    monkeypatch.setitem(sys.modules, "re2", None)  # as if it were not there
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("get_topics", request=1, namespace="acme/plain", mode=0)
        assert list((await raw.heard("get_topics_response")).topics) == ["persistent://acme/plain/b"]
        await raw.say_command("watch_topic_list", request=2, watcher=3, namespace="acme/plain", pattern="acme/plain/b+")
        error = await raw.heard("error")
        assert error.request == 2
        assert "pip install 'engine[patterns]'" in error.message


async def test_a_list_of_many_parts_is_one_frame_within_the_pools_of_lists(served: engine.Engine) -> None:
    names = [f"persistent://acme/many/t{number:05}" for number in range(TOPICS_PER_FRAME_MAX + 10)]
    for name in names:
        served.admin.create_topic(name)
    async with Raw(served) as raw:
        await greeted(raw)
        watch = {"watcher": 3, "namespace": "acme/many", "pattern": "acme/many/.*"}
        await raw.say_command("watch_topic_list", request=1, **watch)
        assert list((await raw.heard("watch_topic_list_success")).topics) == names
        await raw.say_command("get_topics", request=2, namespace="acme/many", mode=0)
        assert list((await raw.heard("get_topics_response")).topics) == names


@pytest.mark.parametrize(
    ("pattern", "own"),
    [
        ("persistent://t/n/a.*", "persistent:(?:a.*)"),
        ("^t/n/(a|b)$", "persistent:(?:(a|b)$)"),
        ("t/n/a|t/n/b", None),
        ("t/n/a\\(b|c", None),
        ("t/./a", None),
        (".*", None),
    ],
)
def test_patterns_are_of_whole_names_in_one_namespace(pattern: str, own: str | None) -> None:
    if own is not None:
        assert own_pattern(pattern, "t/n") == own
        return
    with pytest.raises(UnsupportedError):
        own_pattern(pattern, "t/n")


@pytest.mark.fuzz  # the client looks once a minute, whatever its period is set to
def test_a_subscription_by_a_pattern_follows_topics_that_come(served: engine.Engine, client: pulsar.Client) -> None:
    def name(local: str) -> str:
        return f"persistent://acme/regex/{local}"

    def publish(local: str) -> None:
        producer = client.create_producer(name(local))
        producer.send(local.encode())
        producer.close()

    publish("a1")
    publish("b1")
    options = {"initial_position": EARLIEST, "pattern_auto_discovery_period": 1}
    consumer = client.subscribe(re.compile(name("a.*")), "s", **options)
    assert take(consumer, 1)[0].data() == b"a1"
    for local in ("b2", "a2"):
        publish(local)
    (message,) = take(consumer, 1)
    assert (message.data(), message.topic_name()) == (b"a2", name("a2"))
    consumer.close()


async def test_a_list_without_memory_or_too_large_is_refused_and_holds_nothing(
    served: engine.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        served.admin.create_topic(f"topic://acme/tight/t{number}")
        served.admin.create_topic(f"persistent://acme/tight/t{number}")
    watch = {"watcher": 3, "namespace": "acme/tight", "pattern": "acme/tight/.*"}

    async def refused(raw: Raw, why: str) -> None:
        await raw.say_command("watch_topics", watch=3, namespace="acme/tight")
        update = await raw.heard("watch_topics_update")
        assert update.error
        assert why in update.message
        for name, said in (("watch_topic_list", watch), ("get_topics", {"namespace": "acme/tight", "mode": 0})):
            await raw.say_command(name, request=1, **said)
            heard = await raw.hear()
            assert heard is not None
            assert (heard[0], heard[1].request) == ("error", 1)
            assert why in heard[1].message

    held: list[HeldList] = []

    def made(self: HeldList, session: Any) -> None:
        made_before(self, session)
        held.append(self)

    made_before = HeldList.__init__
    monkeypatch.setattr(HeldList, "__init__", made)
    async with Raw(served) as raw:
        await greeted(raw)
        with monkeypatch.context() as patched:
            patched.setattr(watches, "MESSAGE_SIZE_MAX", 100)
            await refused(raw, "must fit into 100 bytes")
        with monkeypatch.context() as patched:
            patched.setattr(AsyncDualMemoryLimiter, "acquire_nowait", lambda self, size, kind: None)
            await refused(raw, "no memory for a list")
        assert len(held) == 6
        assert not any(one._permits for one in held)
        # The same connection and ids serve once there is room.
        await raw.say_command("watch_topic_list", request=2, **watch)
        assert len((await raw.heard("watch_topic_list_success")).topics) == 5
        await raw.say_command("watch_topics", watch=3, namespace="acme/tight")
        assert len((await raw.heard("watch_topics_update")).snapshot.topics) == 5
        await raw.say_command("ping")
        await raw.heard("pong")
        assert not any(one._permits for one in held)
