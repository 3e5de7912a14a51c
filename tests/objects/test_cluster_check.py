"""`engine cluster check --objects` against a real S3 server and a real etcd."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from engine.cli.main import main
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.s3_server import S3Server
from tests.objects.conftest import open_store

PREFIX = "cluster-check"
URL = f"s3://engine/{PREFIX}"


@pytest.fixture
def metadata(etcd: Etcd, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a cluster's records; the environment has the object store's credentials."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return etcd.url(new_prefix())


def check(metadata: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and what was found."""
    capfd.readouterr()
    code = main(["cluster", "check", "--metadata", metadata, "--objects", URL, "--json"])
    return code, {one["what"]: (one["state"], one["text"]) for one in json.loads(capfd.readouterr().out)}


def test_a_store_that_honours_conditional_writes_passes_and_keeps_nothing(
    metadata: str, server: S3Server, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = check(metadata, capfd)
    assert code == 0, found
    state, text = found[f"objects {URL}"]
    assert state == "ok"
    assert re.fullmatch(r"conditional writes are honoured; a PUT takes \d+\.\d ms", text)

    async def left() -> list[str]:
        store = open_store(server, PREFIX)
        names = [info.name async for info in store.list("")]
        await store.close()
        return names

    assert asyncio.run(left()) == []


def test_a_store_that_refuses_the_credentials_fails_the_check_and_the_rest_is_told(
    metadata: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    code, found = check(metadata, capfd)
    assert code == 1
    state, text = found[f"objects {URL}"]
    assert state == "failed"
    assert "403 SignatureDoesNotMatch" in text
    assert found["etcd writes"][0] == "ok"
