"""The PEM files in the URL of etcd, replaced under a store that is open."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.clock import SystemClock
from engine.errors import InvalidConfigurationError
from engine.metadata.etcd import cluster
from engine.metadata.etcd.credentials import Credentials
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.etcd.url import EtcdUrl
from engine.metadata.store import EventKind
from tests.kit.certificates import Authority
from tests.kit.etcd import Etcd
from tests.kit.peer import until

END_S = 60.0


class Files:
    """What a server and its client name, signed by one authority, and then perhaps by another one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.query = "?" + "&".join(f"{name}={self.path(f'client.{name}')}" for name in ("ca", "cert", "key"))
        self.options = (
            "--cert-file", self.path("server.cert"), "--key-file", self.path("server.key"),
            "--client-cert-auth", "--trusted-ca-file", self.path("server.ca"),
        )  # fmt: skip

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def spoil(self, name: str) -> None:
        """Replace one by what is no PEM."""
        Path(self.path(name)).write_text("no certificate")

    def write(self, authority: Authority, whose: str) -> None:
        """Replace those of the server, or of the client."""
        made = authority.certify("127.0.0.1", name=whose)
        for name, text in (
            ("ca", authority.text),
            ("cert", Path(made.cert).read_text()),
            ("key", Path(made.key).read_text()),
        ):
            Path(self.path(f"{whose}.{name}")).write_text(text)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "first")


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    made = Files(tmp_path)
    for whose in ("server", "client"):
        made.write(authority, whose)
    return made


@pytest.fixture
def server(tmp_path: Path, files: Files) -> Iterator[Etcd]:
    made = Etcd(tmp_path, options=files.options, tls=True)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def store(server: Etcd, files: Files, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EtcdMetadataStore]:
    monkeypatch.setattr(cluster, "LOOK_S", 0.01)
    url = server.url("engine", query=files.query)
    opened = await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random(1), timeout=END_S)
    yield opened
    await opened.close()


async def values(watch: Any, count: int) -> list[bytes]:
    """Of the next puts."""
    found: list[bytes] = []
    async with asyncio.timeout(END_S):
        while len(found) < count:
            event = await anext(aiter(watch))
            if event.kind is EventKind.PUT:
                found.append(event.record.value)
    return found


async def test_an_etcd_of_another_authority_is_reached_by_files_that_were_replaced(
    tmp_path: Path, server: Etcd, files: Files, store: EtcdMetadataStore
) -> None:
    watch = store.watch("/")
    session = await store.session(END_S)
    await store.put("/a", b"1")
    assert await values(watch, 1) == [b"1"]
    second = Authority(tmp_path, "second")
    files.write(second, "client")
    files.write(second, "server")
    server.stop()
    await asyncio.to_thread(server.start)
    await store.put("/a", b"2")
    assert await values(watch, 1) == [b"2"]
    await session.refresh()


async def test_calls_and_watches_go_on_while_files_are_replaced(
    files: Files, authority: Authority, store: EtcdMetadataStore
) -> None:
    watch = store.watch("/")
    await store.put("/a", b"begun")
    assert await values(watch, 1) == [b"begun"]
    done = asyncio.Event()
    written: list[bytes] = []

    async def write() -> None:
        while not done.is_set():
            value = str(len(written)).encode()
            await store.put(f"/b/{len(written)}", value)
            written.append(value)

    writing = asyncio.create_task(write())
    for _ in range(3):
        before, count = store.statistics().watch_streams, len(written)
        files.write(authority, "client")
        await until(lambda before=before: store.statistics().watch_streams > before)
        await until(lambda count=count: len(written) > count + 10)
    done.set()
    await writing
    assert await values(watch, len(written)) == written
    assert (store.statistics().unknown, store.statistics().unusable) == (0, 0)


async def test_files_that_cannot_be_used_change_nothing(
    server: Etcd, files: Files, authority: Authority, store: EtcdMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    streams = store.statistics().watch_streams
    with caplog.at_level(logging.ERROR, "engine.metadata.etcd"):
        files.spoil("client.cert")
        await until(lambda: store.statistics().unusable == 1)
    (record,) = caplog.records
    assert "stay as they were" in record.getMessage()
    assert store.statistics().watch_streams == streams
    server.stop()
    await asyncio.to_thread(server.start)
    await store.put("/a", b"1")  # by the earlier ones, in a new connection
    watch = store.watch("/")
    assert await values(watch, 1) == [b"1"]
    files.write(authority, "client")
    await until(lambda: store.statistics().watch_streams > 1)
    await store.put("/a", b"2")
    assert await values(watch, 1) == [b"2"]


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("ca", None), ("cert", None), ("key", None),
        ("ca", "no PEM"), ("cert", "no PEM"), ("key", "no PEM"), ("key", "of another pair"),
    ],
)  # fmt: skip
def test_files_are_checked_before_they_are_used(files: Files, broken: str, text: str | None) -> None:
    url = EtcdUrl.parse(f"etcds://127.0.0.1/engine{files.query}")
    Credentials(url)
    path = Path(files.path(f"client.{broken}"))
    if text is None:
        path.unlink()
    elif text == "of another pair":
        path.write_text(Path(files.path("server.key")).read_text())
    else:
        path.write_text(text)
    with pytest.raises(InvalidConfigurationError):
        Credentials(url)
