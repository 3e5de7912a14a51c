"""The PEM files that a client's URL names are replaced: its next connections are made with the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.client.base.certificates import Certificates
from engine.client.client import AsyncClient
from engine.errors import EngineError, InvalidArgumentError
from tests.kit.certificates import Authority


class Files:
    """What the URL of a client names: by an authority of long ago at first."""

    def __init__(self, directory: Path) -> None:
        self.before, self.now = Authority(directory, "before"), Authority(directory, "now")
        self.named = {part: str(directory / f"client.{part}") for part in ("ca", "cert", "key")}
        self.put(self.before)

    def put(self, authority: Authority, *parts: str) -> None:
        """Files of an authority in the places that are named; all of them, or some."""
        certified = authority.certify("client", subject="billing")
        for part, file in {"ca": authority.file, "cert": certified.cert, "key": certified.key}.items():
            if not parts or part in parts:
                shutil.copy(file, self.named[part] + ".new")
                Path(self.named[part] + ".new").rename(self.named[part])

    def url(self, host: str, port: int) -> str:
        return f"engines://{host}:{port}?" + "&".join(f"{part}={file}" for part, file in self.named.items())


async def test_a_client_connects_with_what_its_files_are_now(start_broker, tmp_path: Path) -> None:
    files = Files(tmp_path)
    cert, key = files.now.certify("127.0.0.1")
    async with start_broker(tls_cert=cert, tls_key=key, tls_client_ca=files.now.file, roles_file=None) as broker:
        await broker.serve_admin("127.0.0.1", 0)
        await broker.admin.grant("public", "billing", ["admin", "produce"])
        client = AsyncClient(files.url(*await broker.serve("127.0.0.1", 0)), operation_timeout=20)
        try:
            with pytest.raises(EngineError, match="certificate"):  # it trusts another authority
                await client.connect()
            files.put(files.now)
            await client.connect()
            async with client.producer("orders") as producer:
                await producer.send(b"1")
            assert await client.admin.list_topics("public/default")
        finally:
            await client.close()


async def test_the_admin_api_is_asked_with_what_the_files_are_now(start_broker, tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put(files.now)
    cert, key = files.now.certify("127.0.0.1")
    async with start_broker(tls_cert=cert, tls_key=key, tls_client_ca=files.now.file) as broker:
        await broker.serve_admin("127.0.0.1", 0)
        await broker.admin.grant("public", "billing", ["admin"])
        async with AsyncClient(files.url(*await broker.serve("127.0.0.1", 0)), operation_timeout=20) as client:
            files.put(files.before)
            with pytest.raises(EngineError, match="certificate"):
                await client.admin.list_topics("public/default")
            files.put(files.now)
            await client.admin.list_topics("public/default")


def test_files_that_cannot_be_used_leave_the_others_and_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    certificates = Certificates(**files.named)
    first = certificates()
    assert certificates() is first, "nothing has changed"
    files.put(files.now, "cert")  # its key is another's, for a while
    assert certificates() is first
    assert certificates() is first
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["the certificates stay as they were"]
    files.put(files.now)
    second = certificates()
    assert second is not first
    Path(files.named["ca"]).unlink()
    assert certificates() is second
    with pytest.raises(InvalidArgumentError, match="ca must be a PEM file"):
        Certificates(**files.named)
