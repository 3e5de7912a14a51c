"""Backups in an object store: a real S3 server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine.backups import objects
from engine.backups.objects import ObjectDestination
from tests.backups.scenes import Between, everything, opened, send
from tests.kit.s3_server import S3Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    started = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture
def where(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own, with the credentials in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://engine/backups/{request.node.name}"


def test_generations_in_a_bucket(where: str, tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 3_000, size=3_000)
        first = engine.backup(e, where, verify=True).generation
        send(e, "orders", "second", 100)
        second = engine.backup(e, where, keep=2).generation
        assert second.added < 300_000
        third = engine.backup(e, where, keep=2)
    assert third.deleted == (first.name,)
    assert [g.name for g in engine.list_backups(where)] == [second.name, third.generation.name]
    engine.verify_backup(where)
    engine.restore(where, tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders").total() == 3_100


def test_damage_in_a_bucket_is_named(where: str, server: S3Server, tmp_path: Path) -> None:
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 100)
        engine.backup(e, where)
    store = ObjectDestination(where, server.environment, random.Random(1))
    try:
        (pack,) = store.list("packs")
        image = bytearray(store.get(pack.name))
        store.delete([pack.name])
        with pytest.raises(engine.CorruptionError, match="is missing"):
            engine.verify_backup(where)
        image[len(image) // 2] ^= 1
        store.put(pack.name, [image])
        with pytest.raises(engine.CorruptionError, match=f"{pack.name}, byte .* fail their checksum"):
            engine.verify_backup(where)
    finally:
        store.close()


def test_two_at_one_prefix_are_refused(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the lock was renewed in between; one that was killed is over after a while."""
    monkeypatch.setattr(objects, "_RENEW_S", 0.0)
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 100)

        def second() -> None:
            with pytest.raises(engine.LimitExceededError, match="another backup"):
                engine.backup(e, where)

        engine.backup(Between(e, second), where)  # type: ignore[arg-type]
        monkeypatch.setattr(objects.ObjectLock, "release", lambda self: None)
        engine.backup(e, where)
        second()
        monkeypatch.setattr(objects, "LOCK_S", 0.0)
        engine.backup(e, where)


def test_no_credentials_are_an_error_without_them(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises((engine.AuthorizationError, engine.AuthenticationError)):
        engine.list_backups(where)
