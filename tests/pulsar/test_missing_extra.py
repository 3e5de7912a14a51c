"""Where `engine[pulsar]` is not installed, Apache Pulsar's clients hear it, and those of Engine are served."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pulsar
import pytest

import engine
from tests.kit.programs import environment
from tests.pulsar.conftest import connect, service_url
from tests.pulsar.raw import CONNECT, Raw

BROKER = """
import sys
sys.modules["google"] = None  # as if it were not there
import engine
with engine.open(":memory:", listen="127.0.0.1:0") as opened:
    print(opened.service_url, flush=True)
    sys.stdin.read()
"""
WHY = "install engine[pulsar] where it runs"


@pytest.fixture
def lacking() -> Iterator[SimpleNamespace]:
    """A broker in a program that lacks the package of the extra."""
    command = [sys.executable, "-c", BROKER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        assert url, program.communicate(timeout=60)[1]
        made = SimpleNamespace(service_url=url, said="")
        yield made
        made.said = program.communicate("", timeout=60)[1]
    assert program.returncode == 0
    assert WHY in made.said, "the broker's log"


async def test_a_client_hears_what_is_missing(lacking: SimpleNamespace):
    async with Raw(lacking) as raw:
        await raw.say(CONNECT)
        assert WHY in " ".join(await raw.ends())
    client = connect(service_url(lacking), timeout_s=2)  # type: ignore[arg-type]
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/t")
    client.close()
    async with engine.AsyncClient(lacking.service_url) as other, other.producer("t") as producer:
        assert (await producer.send(b"x")).offset == 0
