"""A FastAPI application under uvicorn, on the installed package: produces and consumes, ends cleanly, and goes on."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_server import Server
from tests.firstuse.wheels import Installed

pytestmark = pytest.mark.timeout(1800)  # the first test of each Python builds its wheel

TABLES = [f"table-{n}" for n in range(5)]
LISTENS = re.compile(r"Uvicorn running on (http://[\d.]+:\d+)")
STARTED = "Application startup complete."


@contextmanager
def application(installed: Installed, workers: int = 1, **variables: str) -> Iterator[str]:
    """The application under uvicorn; its URL. When it is told to end it does so cleanly."""
    command = [installed.folder / "bin" / "uvicorn", "shop:app", "--app-dir", Path(__file__).parent]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--workers", str(workers), "--no-access-log"],
        env=installed.variables(PYTHONDONTWRITEBYTECODE="1", **variables),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    try:
        while said.count(STARTED) < workers or not LISTENS.search(said):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield LISTENS.findall(said)[0]
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=60)
    assert "Traceback" not in rest, rest
    assert rest.count("Application shutdown complete.") == workers, rest


def asked(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def order(url: str, first: int, last: int) -> None:
    """Orders of these numbers for each table, all tables at once."""

    def guest(table: str) -> list[int]:
        orders = [{"number": n, "table": table, "dish": "espresso"} for n in range(first, last)]
        return [asked(f"{url}/orders", body) for body in orders]

    with ThreadPoolExecutor(len(TABLES)) as guests:
        assert list(guests.map(guest, TABLES)) == [list(range(first, last))] * len(TABLES)


def served(url: str, count: int) -> dict[str, list[int]]:
    """What was served, once it is so much."""
    until = time.monotonic() + 60
    found = asked(f"{url}/served")
    while sum(map(len, found.values())) < count and time.monotonic() < until:
        found = asked(f"{url}/served")
    return found


def test_an_engine_in_the_application(installed: Installed, tmp_path: Path):
    data = str(tmp_path / "data")
    with application(installed, SHOP_DATA=data) as url:
        order(url, 0, 20)
        assert served(url, 100) == {table: list(range(20)) for table in TABLES}
    with application(installed, SHOP_DATA=data) as url:
        order(url, 20, 30)
        assert served(url, 150) == {table: list(range(30)) for table in TABLES}, "nothing is served twice"


def test_two_workers_at_a_broker(installed: Installed, broker: Server, tmp_path: Path):
    with application(installed, workers=2, SHOP_URL=broker.url) as url:
        order(url, 0, 20)
        assert served(url, 100) == {table: list(range(20)) for table in TABLES}
