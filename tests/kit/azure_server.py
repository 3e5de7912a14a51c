"""`AzureServer`: Azurite (Azure's blob storage, from npm) on a free loopback port, with one container, for tests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import socket
import subprocess
import sys
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path

from engine.cli.demo_servers import free_ports
from tests.kit.optional import lacking

ACCOUNT = "engine"
CONTAINER = "messages"
KEY = base64.b64encode(b"not a secret, but secret enough").decode()
STARTED_S_MAX = 60.0


def program() -> str:
    """The path of the server, which `make fuzz` installs. Without it, the test that asks is over."""
    found = Path(sys.prefix) / "azurite/node_modules/.bin/azurite-blob"
    if not found.exists():
        lacking("Azurite", f"npm install --prefix {found.parents[2]} azurite")
    return str(found)


class AzureServer:
    """One server, which keeps its data in `directory`."""

    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self._log = directory / "log"
        options = {"blobHost": "127.0.0.1", "blobPort": str(port), "location": str(directory / "data")}
        words = [f"--{name}={value}" for name, value in options.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program(), *words, "--silent", "--disableTelemetry", "--skipApiVersionCheck"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )
        try:
            self._await_answers(port)
            self._make_container()
        except BaseException:
            self.kill()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What an operator sets for such a server."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
        }

    def _await_answers(self, port: int) -> None:
        deadline = time.monotonic() + STARTED_S_MAX
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Azurite did not start: {self._log.read_text(errors='replace')[-2_000:]}")
            time.sleep(0.05)

    def _make_container(self) -> None:
        """The library can store objects, and not make a container: one request, signed by the account's key."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
        lines += [f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}", "restype:container"]
        digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}/{CONTAINER}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()

    def kill(self) -> None:
        """SIGKILL, by the id of its process. Idempotent."""
        self._process.kill()
        self._process.wait()
