"""`engine migrate`: between directories and servers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import engine as library
from tests.cli.cli_server import Server


def fill(directory: Path, *topics: str) -> None:
    with library.open(directory) as e:
        for topic in topics:
            with e.producer(topic) as producer:
                for number in range(50):
                    producer.send_nowait(b"%d" % number, key=f"k{number % 3}")


def test_a_directory_moves_into_a_server_and_back(engine: Any, server: Server, tmp_path: Path):
    fill(tmp_path / "source", "orders")
    there = ("--to", server.url, "--verify", "--subscriptions")
    done = engine("migrate", "orders", "--from", tmp_path / "source", *there)
    assert done.code == 0, done.err
    assert "topic://public/default/orders" in done.out
    assert " 50 " in done.out
    back = engine("migrate", "orders", "--from", server.url, "--to", tmp_path / "back", "--verify", "--json")
    assert back.code == 0, back.err
    (migrated,) = json.loads(back.out)
    assert (migrated["sent"], migrated["verified"]["messages"], migrated["verified"]["keys"]) == (50, 50, 3)
    read = engine("consume", "orders", "--data", tmp_path / "back", "-n", 50, "--timeout", 60)
    assert sorted(map(int, read.out.split())) == list(range(50))


def test_a_pattern_of_a_namespace_moves_into_another_namespace(engine: Any, tmp_path: Path):
    fill(tmp_path / "source", "orders-1", "orders-2", "payments")
    places = ("--from", tmp_path / "source", "--to", tmp_path / "copy", "--to-namespace", "acme/shop", "--json")
    done = engine("migrate", "--namespace", "public/default", "--pattern", "orders-.*", *places)
    assert done.code == 0, done.err
    found = [migrated["topic"] for migrated in json.loads(done.out)]
    assert found == ["topic://acme/shop/orders-1", "topic://acme/shop/orders-2"]


def test_misuse_is_said_before_anything_is_made(engine: Any, tmp_path: Path):
    fill(tmp_path / "source", "orders")
    places = ("--from", tmp_path / "source", "--to", tmp_path / "copy")
    misuses = [
        (2, "give a TOPIC, or --namespace", *places),
        (2, "--pattern chooses topics", "orders", "--pattern", "x", *places),
        (2, "--as names the copy of one TOPIC", "--namespace", "public/default", "--as", "x", *places),
        (2, "must have no token", "orders", "--from", "engine://secret@a", "--to", tmp_path / "copy"),
        (2, "are for a broker's URL", "orders", *places, "--to-token-file", __file__),
        (1, "does not exist", "nothing", *places),
        (1, "is no data directory", "orders", "--from", tmp_path / "none", "--to", tmp_path / "copy"),
    ]
    for code, text, *arguments in misuses:
        result = engine("migrate", *arguments)
        assert result.code == code, result.err
        assert text in result.err
        assert "secret" not in result.err


def test_a_topic_of_apache_pulsar_moves_into_a_directory(engine: Any, server: Server, tmp_path: Path):
    with library.Client(server.url) as client, client.producer("persistent://public/default/sold") as producer:
        for number in range(50):
            producer.send_nowait(b"%d" % number, key=f"k{number % 3}")
        producer.flush()
    url = f"pulsar://{server.url.partition('://')[2]}"
    done = engine("migrate", f"{url}/public/default/sold", "--to", tmp_path / "copy", "--verify", "--json")
    assert done.code == 0, done.err
    (migrated,) = json.loads(done.out)
    assert (migrated["topic"], migrated["sent"]) == ("persistent://public/default/sold", 50)
    again = engine("migrate", "sold", "--from", url, "--to", tmp_path / "copy", "--to-namespace", "acme/shop")
    assert again.code == 0, again.err
    assert "persistent://acme/shop/sold" in again.out
    misuses = [
        ("of Apache Pulsar, one TOPIC", "--namespace", "public/default", "--from", url),
        ("of Apache Pulsar, one TOPIC", "sold", "--from", url, "--subscriptions"),
        ("excludes --from", f"{url}/public/default/sold", "--from", url),
        ("must be pulsar://HOST:PORT/TENANT", url),
        ("must say where the source is", "sold"),
    ]
    for text, *arguments in misuses:
        result = engine("migrate", *arguments, "--to", tmp_path / "other")
        assert result.code == 2, result.err
        assert text in result.err
