"""A server on etcd and a real store: a client with credentials reads what is consolidated from the store alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from engine.limits import MIB, OBJECT_CHUNK_SIZE
from engine.storage.objects.remote import RemoteObjectStore
from engine.sync import Client
from tests.cli.cli_server import Server
from tests.kit.etcd import Etcd
from tests.kit.s3_server import S3Server
from tests.objects.consolidated import MESSAGES, OBJECTS, SIZE, WRITTEN, consolidated, counter, read, with_credentials


@pytest.fixture(scope="module")
def serving(server: S3Server, etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker for all tests here."""
    with consolidated(server, etcd, tmp_path_factory.mktemp("broker")) as started:
        yield started


def test_no_message_passes_through_the_broker_and_a_request_brings_megabytes(
    serving: Server, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_credentials(monkeypatch, server)
    asked: list[tuple[str, int]] = []
    get_range = RemoteObjectStore.get_range

    async def counted(store: RemoteObjectStore, name: str, start: int, end: int) -> memoryview:
        data = await get_range(store, name, start, end)
        asked.append((name, len(data)))
        return data

    monkeypatch.setattr(RemoteObjectStore, "get_range", counted)
    with Client(serving.url, objects=OBJECTS) as client:
        names = ("out_messages_total", "out_bytes_total", "object_requests_total", "object_read_messages_total")
        before = {name: counter(client, name) for name in names}
        assert read(client) == WRITTEN, "other messages, or another order"
        after = {name: counter(client, name) for name in names}
    assert after["out_messages_total"] == before["out_messages_total"]
    assert after["out_bytes_total"] == before["out_bytes_total"], "the broker has sent no byte of a message"
    assert after["object_read_messages_total"] - before["object_read_messages_total"] == MESSAGES
    files = {name for name, _ in asked}
    size = sum(count for _, count in asked)
    assert MESSAGES * SIZE <= size < 1.01 * MESSAGES * SIZE, "nothing is read twice"
    assert len(asked) <= size / OBJECT_CHUNK_SIZE + len(files), f"{len(asked)} GETs of {size / MIB:.1f} MB"


@pytest.mark.parametrize("how", ["no store", "no credentials", "wrong credentials", "another bucket", "no library"])
def test_without_a_way_to_the_store_the_broker_sends_all(
    how: str, serving: Server, server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_credentials(monkeypatch, server)
    objects = {"no store": None, "another bucket": "s3://elsewhere/direct"}.get(how, OBJECTS)
    if how == "no credentials":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    elif how == "wrong credentials":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    elif how == "no library":
        monkeypatch.setitem(sys.modules, "obstore", None)
    with caplog.at_level(logging.WARNING, "engine.client"), Client(serving.url, objects=objects) as client:
        before = counter(client, "out_messages_total")
        assert read(client) == WRITTEN, "other messages, or another order"
        assert counter(client, "out_messages_total") - before == MESSAGES
    said = [r.getMessage() for r in caplog.records if "objects are read through brokers" in r.getMessage()]
    assert len(said) == (how != "no store"), said
    assert server.environment["AWS_SECRET_ACCESS_KEY"] not in caplog.text


def test_the_store_is_that_of_the_environment_where_the_service_is(
    serving: Server, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_credentials(monkeypatch, server)
    monkeypatch.setenv("ENGINE_URL", serving.url)
    monkeypatch.setenv("ENGINE_OBJECTS", OBJECTS)
    for url, sent in ((None, 0), (serving.url, MESSAGES)):
        with Client(url) as client:
            before = counter(client, "out_messages_total")
            assert read(client) == WRITTEN, "other messages, or another order"
            assert counter(client, "out_messages_total") - before == sent
