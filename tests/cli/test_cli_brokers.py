"""`engine brokers config`, and logs as `engine serve` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.broker.settings.config import BrokerConfig
from tests.cli.cli_server import Server, start_server, stop_server

Run = Callable[..., Any]
NAME = "maxTopicListInFlightHeapMemSizeMB"
MIB = 1 << 20


def test_the_rollout_of_the_specification(server: Server, engine: Run):
    def config(*words: str) -> Any:
        return engine("brokers", "config", *words, "--url", server.url)

    usual = BrokerConfig().topic_list_heap_max
    assert config("get", NAME).out == f"{usual}\n"
    for megabytes in (512, 200, 100):
        assert config("set", NAME, str(megabytes)).code == 0
        assert config("get", NAME).out == config("get", "topic_list_heap_max").out == f"{megabytes * MIB}\n"
    found = json.loads(config("list", "--json").out)
    assert found["topic_list_heap_max"] == {"value": 100 * MIB, "set": True}
    assert found["connections_max"]["set"] is False
    assert "topic_list_heap_max" in config("list").out
    assert config("unset", NAME).code == 0
    assert json.loads(config("list", "--json").out)["topic_list_heap_max"] == {"value": usual, "set": False}


def test_mistakes_are_one_line(server: Server, engine: Run):
    for words, said in {
        ("set", "nonsense", "3"): "a setting at run time must be one of",
        ("set", "segments", "3"): "a setting at run time must be one of",
        ("set", "publish_bytes_max", "3"): "publish_bytes_max must be an integer from",
        ("unset", "segments"): "a setting at run time must be one of",
        ("get", "nonsense"): "a setting at run time must be one of",
        ("get", "segments"): "a setting at run time must be one of",
    }.items():
        result = engine("brokers", "config", *words, "--url", server.url)
        assert result.code == 1, words
        assert said in result.err
        assert len(result.err.splitlines()) == 1


def test_it_outlives_the_server_that_was_told(tmp_path, engine: Run):
    server = start_server(tmp_path / "data")
    engine("brokers", "config", "set", "connections_max", "77", "--url", server.url)
    stop_server(server)
    assert engine("brokers", "config", "get", "connections_max", "--data", tmp_path / "data").out == "77\n"


def test_a_server_logs_json_where_it_is_asked_to(tmp_path):
    server = start_server(tmp_path / "data", "--log-format", "json")
    _, rest = stop_server(server)
    lines = [json.loads(line) for line in [*server.lines, *rest.splitlines()] if line.startswith("{")]
    assert [line["event"] for line in lines] == [
        "broker on %s started",
        "serving clients on %s",
        "broker on %s closed",
    ]
    assert lines[1]["url"] == server.url
    assert all(line["level"] == "info" and line["time"].endswith("Z") for line in lines)
