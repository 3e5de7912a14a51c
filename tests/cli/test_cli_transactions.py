"""`engine transactions` against a server and against a data directory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import Client
from tests.cli.cli_server import Server

Run = Callable[..., Any]
UNKNOWN = "00000000000000ff"


@pytest.fixture
def held(server: Server) -> Iterator[tuple[Client, str, str]]:
    """A client, the id of its open transaction, and the segment that it has written to."""
    client = Client(server.url)
    with client.producer("orders") as producer:
        transaction = client.transaction(timeout=600.0, name="batch-7")
        producer.send(b"x", transaction=transaction)
        ident = transaction.id
    (segment,) = client.admin.get_metadata("orders")["segments"].values()
    bounds = segment["hashRange"]
    name = f"segment://public/default/orders/{bounds['start']:04x}-{bounds['end']:04x}-{segment['segmentId']}"
    yield client, ident, name
    client.close()


def test_list_show_and_abort(engine: Run, server: Server, held: tuple[Client, str, str]):
    client, ident, segment = held
    with client:
        listed = engine("transactions", "list", "--segment", segment, "--url", server.url, "--json")
        assert [(t["id"], t["name"]) for t in json.loads(listed.out)] == [(ident, "batch-7")]
        table = engine("transactions", "list", "--url", server.url).out
        assert ident in table
        assert "batch-7" in table
        assert (
            json.loads(engine("transactions", "list", "--open-longer-than", "1h", "--url", server.url, "--json").out)
            == []
        )
        shown = json.loads(engine("transactions", "show", ident, "--url", server.url, "--json").out)
        assert [(o["segment"], o["kind"], o["messages"]) for o in shown["operations"]] == [(segment, "write", 1)]
        text = engine("transactions", "show", ident, "--url", server.url).out
        assert "OPEN" in text
        assert "UTC" in text
        table = engine("topics", "stats", "orders", "--url", server.url).out
        assert f"readers of segment 0 wait at offset 0 of 1 for the transaction {ident}" in table
        stats = engine("topics", "stats", "orders", "--url", server.url, "--json")
        assert ident in stats.out
        done = engine("transactions", "abort", ident, "--yes", "--url", server.url)
        assert (done.code, done.err.strip()) == (0, f"aborted {ident}")
        assert client.admin.get_transaction(ident)["state"] == "ABORTED"
        ended = engine("transactions", "show", ident, "--url", server.url).out
        assert re.search(r"^ended +\d{4}-", ended, re.MULTILINE)
        assert "aborted in" not in ended
        assert json.loads(engine("transactions", "list", "--url", server.url, "--json").out) == []


def test_what_is_refused(engine: Run, tmp_path: Any):
    place = ["--data", str(tmp_path / "own")]
    assert engine("transactions", "show", "x", *place).code == 2
    assert engine("transactions", "list", "--segment", "orders", *place).code == 2
    assert engine("transactions", "list", "--open-longer-than", "long", *place).code == 2
    made = engine("topics", "create", "orders", *place)
    assert made.code == 0
    result = engine("transactions", "abort", UNKNOWN, "--yes", *place)
    assert result.code == 1
    assert UNKNOWN in result.err
