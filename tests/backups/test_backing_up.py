"""What a backup has: all that was acknowledged before it, one moment over everything, and only what is new."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.backups import source
from engine.broker import server
from engine.broker.assembly import storage_config
from engine.model.admin_requests import Operation
from engine.storage.disk.config import StorageConfig
from tests.backups.scenes import Between, everything, opened, send, unacknowledged


def test_a_restored_directory_has_what_was_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        e.admin.create_topic("orders", segments=2, properties={"team": "a"})
        e.admin.create_subscription("orders", "billing", initial_position="earliest")
        values = send(e, "orders", "first", 50)
        with e.queue_consumer("orders", "billing") as c:
            done = [c.receive(timeout=30.0) for _ in range(20)]
            c.acknowledge([m for m in done if m is not None])
        acknowledged = [bytes(m.value) for m in done if m is not None]
        backed_up = engine.backup(e, tmp_path / "backups", verify=True)
    assert (backed_up.generation.topics, backed_up.generation.segments) == (1, 2)
    assert backed_up.generation.messages == 50
    assert backed_up.verified
    restored = engine.restore(tmp_path / "backups", tmp_path / "restored")
    assert restored.generation == backed_up.generation
    with opened(tmp_path / "restored") as e:
        assert sorted(everything(e, "orders")) == sorted(values)
        assert e.admin.get_metadata("orders")["properties"] == {"team": "a"}
        assert sorted(unacknowledged(e, "orders", "billing", 30)) == sorted(set(values) - set(acknowledged))
        more = send(e, "orders", "second", 10)
        assert sorted(everything(e, "orders")) == sorted(values + more)


def test_what_comes_after_the_moment_is_not_in_it(tmp_path: Path) -> None:
    """Appends, a split, a merge, deletions, retention: what the broker does meanwhile changes nothing."""
    with opened(tmp_path / "data", retention_time=0.0) as e:
        for topic in ("orders", "doomed", "kept", "merged"):
            e.admin.create_topic(topic, segments=2 if topic == "merged" else 1)
            e.admin.create_subscription(topic, "s", initial_position="earliest")
        before = {topic: send(e, topic, "before", 40) for topic in ("orders", "doomed", "kept", "merged")}
        e.admin.clear_backlog("orders", "s")

        def act() -> None:
            send(e, "orders", "after", 30)
            e.admin.split_segment("orders", 0)
            send(e, "orders", "after the split", 30)
            e.admin.merge_segments("merged", 0, 1)
            e.admin.delete_topic("doomed")
            e.admin.clear_backlog("kept", "s")
            e.admin.create_topic("new")
            send(e, "new", "after", 5)

        between = Between(e, act)
        engine.backup(between, tmp_path / "backups")  # type: ignore[arg-type]
        assert between.ended == [True]
        assert everything(e, "orders").total() == 100
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert sorted(e.list_topics()) == sorted(f"topic://public/default/{t}" for t in before)
        assert [len(e.admin.get_metadata(t)["segments"]) for t in ("orders", "merged")] == [1, 2]
        for topic, values in before.items():
            assert sorted(everything(e, topic)) == sorted(values)
        assert unacknowledged(e, "orders", "s", 0).total() == 0
        assert sorted(unacknowledged(e, "kept", "s", 40)) == sorted(before["kept"])
        e.admin.split_segment("orders", 0)
        send(e, "orders", "later", 10)
        assert everything(e, "orders").total() == 50


def test_closed_segments_are_kept_as_they_were(tmp_path: Path) -> None:
    """They are opened, appended to and deleted behind the moment, before the copying has come to them."""
    with opened(tmp_path / "data") as e:
        before = {topic: send(e, topic, "before", 20) for topic in ("appended", "deleted", "idle")}
    with opened(tmp_path / "data") as e:

        def act() -> None:
            send(e, "appended", "after", 20)
            e.admin.delete_topic("deleted")

        engine.backup(Between(e, act), tmp_path / "backups")  # type: ignore[arg-type]
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        for topic, values in before.items():
            assert sorted(everything(e, topic)) == sorted(values)


def test_transactions_have_one_answer(tmp_path: Path) -> None:
    """One that is committed is there whole; one that is open at the moment is aborted, whatever became of it."""
    with opened(tmp_path / "data") as e:
        producers = {topic: e.producer(topic) for topic in ("a", "b")}
        for name in ("committed", "aborted"):
            t = e.transaction()
            for topic, p in producers.items():
                p.send(f"{name} {topic}".encode(), transaction=t)
            t.commit() if name == "committed" else t.abort()
        late = e.transaction(timeout=2.0)
        for topic, p in producers.items():
            p.send(f"late {topic}".encode(), transaction=late)
        engine.backup(Between(e, late.commit), tmp_path / "backups")  # type: ignore[arg-type]
        for topic in producers:
            assert everything(e, topic) == {f"committed {topic}".encode(): 1, f"late {topic}".encode(): 1}
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        for topic in ("a", "b"):
            with e.queue_consumer(topic, "s", initial_position="earliest") as c, e.producer(topic) as p:
                p.send(b"after")
                received = [c.receive(timeout=30.0) for _ in range(2)]  # the second once the open one has timed out
                assert [bytes(m.value) for m in received if m is not None] == [f"committed {topic}".encode(), b"after"]


def test_a_further_backup_writes_what_is_new(tmp_path: Path) -> None:
    where = tmp_path / "backups"
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 2_000, size=1_000)
        first = engine.backup(e, where).generation
        more = send(e, "orders", "second", 100, size=1_000)
        second = engine.backup(e, where).generation
        third = engine.backup(e, where).generation
    assert first.added == first.size > 2_000_000
    assert second.size > first.size + sum(map(len, more))
    assert second.added < 200_000
    assert third.added < 50_000  # its metadata
    assert [g.name for g in engine.list_backups(where)] == [first.name, second.name, third.name]
    for generation, count in ((first, 2_000), (second, 2_100), (third, 2_100)):
        data = tmp_path / generation.name
        engine.restore(where, data, generation=generation.name)
        with opened(data) as e:
            assert everything(e, "orders").total() == count


def test_a_restored_directory_is_backed_up_to_the_same_place(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 2_000, size=1_000)
        engine.backup(e, tmp_path / "backups")
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        send(e, "orders", "second", 10, size=1_000)
        assert engine.backup(e, tmp_path / "backups", verify=True).generation.added < 100_000
    engine.restore(tmp_path / "backups", tmp_path / "again")
    with opened(tmp_path / "again") as e:
        assert everything(e, "orders").total() == 2_010


def test_rolled_files_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*arguments: Any, **options: Any) -> StorageConfig:
        return dataclasses.replace(storage_config(*arguments, **options), file_size_max=200_000)

    monkeypatch.setattr(server, "storage_config", small)
    where = tmp_path / "backups"
    with opened(tmp_path / "data") as e:
        for n in range(10):
            send(e, "orders", f"first {n}", 100, size=1_000)
        engine.backup(e, where)
        for n in range(5):
            send(e, "orders", f"second {n}", 100, size=1_000)
        second = engine.backup(e, where, verify=True).generation
    assert second.added < 700_000
    engine.restore(where, tmp_path / "restored")
    assert len(list((tmp_path / "restored").rglob("*.log"))) > 5
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders").total() == 1_500


def test_old_generations_go_with_what_only_they_needed(tmp_path: Path) -> None:
    where = tmp_path / "backups"
    with opened(tmp_path / "data") as e:
        for n in range(4):
            send(e, "orders", f"part {n}", 200, size=1_000)
            done = engine.backup(e, where, keep=2)
        e.admin.delete_topic("orders")
        send(e, "other", "all", 10)
        assert len(done.deleted) == 1
        oldest, _ = engine.list_backups(where)
        assert engine.prune_backups(where, 1) == [oldest.name]
        engine.backup(e, where, keep=1, verify=True)
    assert len(engine.list_backups(where)) == 1
    engine.verify_backup(where)
    packs = [path.stat().st_size for path in (where / "packs").iterdir()]
    assert sum(packs) < 100_000  # nothing of the deleted topic is left


def test_what_an_interrupted_backup_left_disappears(tmp_path: Path) -> None:
    where = tmp_path / "backups"
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 100)
        kept = engine.backup(e, where).generation

        def dies() -> None:
            raise RuntimeError("it dies")

        between = Between(e, dies)
        with pytest.raises(RuntimeError, match="it dies"):
            engine.backup(between, where)  # type: ignore[arg-type]
        (where / "packs" / "20200101T000000000Z-0000-00001.pack").write_bytes(b"of one that was killed")
        (where / "packs" / "another.pack.new").write_bytes(b"of one that was killed")
        assert engine.list_backups(where) == [kept]
        engine.verify_backup(where)
        second = engine.backup(e, where, keep=2).generation
    assert [g.name for g in engine.list_backups(where)] == [kept.name, second.name]
    assert not (where / "packs" / "20200101T000000000Z-0000-00001.pack").exists()
    engine.verify_backup(where)


def test_what_is_kept_for_a_backup_goes_with_it(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 10)
        engine.backup(e, tmp_path / "backups")
        assert list((tmp_path / "data" / "kept-for-backups").iterdir()) == []
        left = tmp_path / "data" / "kept-for-backups" / "0123456789abcdef"  # as of a process that was killed
        left.mkdir()
        (left / "1").write_bytes(b"a link")
    with opened(tmp_path / "data") as e:
        e.admin.get_metrics()
        engine.backup(e, tmp_path / "backups")
        assert not left.exists()


def test_from_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte comes through the admin API."""
    monkeypatch.setattr(source, "is_here", lambda directory: False)
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as e:
        values = send(e, "orders", "first", 3_000, size=2_000)
        with engine.Client(e.service_url) as client:
            engine.backup(client, tmp_path / "backups", verify=True)
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert sorted(everything(e, "orders")) == sorted(values)


async def test_the_awaited_form(tmp_path: Path) -> None:
    steps: list[str] = []
    async with engine.open_async(tmp_path / "data") as e, e.producer("orders") as p:
        await p.send(b"one")
        done = await engine.backup_async(
            e, tmp_path / "backups", verify=True, on_progress=lambda step, *_: steps.append(step)
        )
        assert done.generation.messages == 1
    assert set(steps) == {"copy", "verify"}
    await asyncio.to_thread(engine.restore, tmp_path / "backups", tmp_path / "restored")


def test_two_at_one_destination_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 10)

        def second() -> None:
            with pytest.raises(engine.LimitExceededError, match="another backup"):
                engine.backup(e, tmp_path / "backups")
            with pytest.raises(engine.LimitExceededError, match="another backup"):
                engine.prune_backups(tmp_path / "backups", 1)

        engine.backup(Between(e, second), tmp_path / "backups")  # type: ignore[arg-type]
        engine.backup(e, tmp_path / "backups")


def test_what_cannot_be_backed_up_is_refused(tmp_path: Path) -> None:
    with engine.open(":memory:") as e, pytest.raises(engine.UnsupportedError, match="in memory"):
        engine.backup(e, tmp_path / "backups")
    with opened(tmp_path / "data") as e:
        with pytest.raises(engine.InvalidArgumentError, match="outside of the data directory"):
            engine.backup(e, tmp_path / "data" / "backups")
        (tmp_path / "used").mkdir()
        (tmp_path / "used" / "letter").write_text("to somebody")
        with pytest.raises(engine.InvalidArgumentError, match="must be empty, or hold backups"):
            engine.backup(e, tmp_path / "used")
        with pytest.raises(engine.InvalidArgumentError, match="keep must be"):
            engine.backup(e, tmp_path / "backups", keep=0)
        with pytest.raises(engine.InvalidArgumentError, match="destination must be"):
            engine.backup(e, "")
        with pytest.raises(engine.InvalidArgumentError, match="s3://bucket/prefix"):
            engine.backup(e, "ftp://somewhere")
    with pytest.raises(engine.NotFoundError, match="holds no backups"):
        engine.list_backups(tmp_path / "data")


async def test_answers_that_are_lost_cost_nothing_but_another_request(tmp_path: Path) -> None:
    """The process of a broker that has answered may end behind any request."""
    lost: dict[str, int] = {}
    async with engine.open_async(tmp_path / "data") as e:
        async with e.producer("orders") as producer:
            await producer.send(b"one")
        admin_call = e.admin._call

        async def call(operation: Operation[Any], arguments: Mapping[str, Any]) -> Any:
            answer = await admin_call(operation, arguments)
            if not operation.http.startswith("GET") and lost.setdefault(operation.name, 0) < 2:
                lost[operation.name] += 1
                raise engine.UnknownOutcomeError("the connection was lost")
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(e.admin, "_call", call)
            made = await engine.backup_async(e, tmp_path / "backups", verify=True)
    assert made.generation.messages == 1
    assert lost == {"begin_backup": 2, "end_backup": 2}
