"""A real S3 server for this folder. It is never skipped: what it needs comes with the extra `test`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest

from engine.storage.objects.remote import RemoteObjectStore
from engine.storage.objects.requests import RequestLimits
from tests.kit.s3_server import S3Server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for all tests of the folder that one process runs."""
    started = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture
async def store(server: S3Server, request: pytest.FixtureRequest) -> AsyncIterator[RemoteObjectStore]:
    """The server as a store, below a prefix of the test's own."""
    prefix = "".join(c if c.isalnum() else "-" for c in request.node.name)
    opened = open_store(server, prefix)
    yield opened
    await opened.close()


def open_store(server: S3Server, prefix: str, seed: int = 1, **limits: float) -> RemoteObjectStore:
    """A client of the server."""
    bounds = RequestLimits(**limits)  # type: ignore[arg-type]
    return RemoteObjectStore.open(f"s3://engine/{prefix}", server.environment, rng=random.Random(seed), limits=bounds)
