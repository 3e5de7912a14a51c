"""`engine limits`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_limits_are_set_shown_and_taken_back(engine: Run, tmp_path: Path) -> None:
    def run(*words: str, code: int = 0) -> str:
        result = engine(*words, "--data", str(tmp_path / "own"))
        assert result.code == code, (result.out, result.err)
        return str(result.out if code == 0 else result.err)

    run("limits", "set", "red", "total-publish-bytes-per-s=2MB", "backlog-age-s=2h")
    run("limits", "set", "red/app/orders", "backlog-action=evict", "producers-max=-1")
    run("limits", "set", "role:*", "connections-max=5")
    assert json.loads(run("limits", "list", "--json")) == {
        "red": {"backlog_age_s": 7200, "total_publish_bytes_per_s": 2 << 20},
        "red/app/orders": {"producers_max": -1, "backlog_action": "evict"},
        "role:*": {"connections_max": 5},
    }
    assert "no limit" in run("limits", "get", "red/app/orders")
    assert "connections-max" in run("limits", "list")
    run("limits", "unset", "red", "backlog-age-s")
    run("limits", "unset", "role:*", "--all")
    said = json.loads(run("limits", "get", "red", "--json"))
    assert {name: value for name, value in said.items() if value is not None} == {"total_publish_bytes_per_s": 2 << 20}
    for words, text in (
        (("set", "red", "speed=1"), "a limit must be one of publish-messages-per-s"),
        (("set", "red", "producers-max"), "a limit must be NAME=VALUE"),
        (("set", "red", "producers-max=many"), "producers-max must be a number, or text with a unit, got 'many'"),
        (("unset", "red"), "name limits, or give --all"),
    ):
        assert text in run("limits", *words, code=2)
    assert "a limit of red must be one of" in run("limits", "set", "red", "connections-max=1", code=1)
