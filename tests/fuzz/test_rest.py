"""Requests that no tool of ours would make, at a living admin API: a status, a reason, and never a traceback."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from engine.broker.admin.rest import _routes
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.errors import EngineError
from tests.fuzz.values import BYTES, NAMES, value

BODIES = [
    b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"a":' * 5_000, b"9" * 10_000,
    b'{"segments": 1e400}', b'{"properties": {"a": "\\ud800"}}', b'{"\\ud800": 1}', b'{"segments": NaN}',
]  # fmt: skip
FIELDS = [
    "segments", "entryBuckets", "keyHash", "durability", "properties", "initialPosition", "when", "buckets", "enabled",
    "retentionTimeSeconds", "retentionSizeBytes", "maxSegments", "splitCooldownSeconds", "value", "retention_time_s",
]  # fmt: skip
QUERIES = ["", "?force=maybe", "?buckets=x", "?buckets=1&buckets=2", "?property=x", "?property=%ff=%00", "?limit=-1"]
SANE = {"tenant": "public", "namespace": "default", "topic": "orders", "subscription": "s", "descriptor": "0000-ffff-0"}
UNAVAILABLE = (501, 503)  # what only Apache Pulsar has; what is not possible for now
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]


def jsonable(found: Any) -> Any:
    """The same as far as JSON has it."""
    if isinstance(found, dict):
        return {str(k): jsonable(v) for k, v in found.items()}
    if isinstance(found, list):
        return [jsonable(v) for v in found]
    return found.hex() if isinstance(found, bytes) else found


def body(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.choice([*BODIES, *BYTES])
    fields = {rng.choice(FIELDS): jsonable(value(rng, 1)) for _ in range(rng.randrange(4))}
    return json.dumps(fields).encode()


def path(rng: random.Random, pattern: str) -> str:
    """The route's, with each part as it should be, or not."""
    parts = []
    for part in pattern.split("/"):
        if not part.startswith("{"):
            parts.append(part)
        elif rng.random() < 0.8 and part[1:-1] in SANE:
            parts.append(SANE[part[1:-1]])
        else:
            name = rng.choice([*NAMES, "0", "1", "99", "-1", "9" * 40]).encode(errors="replace")
            parts.append(quote(name, safe="") or "-")
    return "/".join(parts)


async def attack(folder: Path, seed: int, rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(seed)
    caplog.set_level(logging.ERROR)
    broker = Broker(folder, config=BrokerConfig())
    await broker.start()
    try:
        host, port = await broker.serve_admin("127.0.0.1", 0)
        routes = [(route.method, route.path) for route in _routes(broker)]
        async with aiohttp.ClientSession() as session:
            for number in range(rounds):
                method, pattern = rng.choice(routes)
                if method == "*" or rng.random() < 0.1:
                    method = rng.choice(METHODS)
                url = aiohttp.client.URL(f"http://{host}:{port}{path(rng, pattern)}{rng.choice(QUERIES)}", encoded=True)
                said = body(rng)
                async with session.request(method, url, data=said) as answer:
                    text = await answer.text()
                    what = f"seed {seed}, round {number}: {method} {url} {said[:200]!r}: {answer.status} {text[:500]}"
                    assert answer.status < 500 or answer.status in UNAVAILABLE, what
                    assert "Traceback" not in text, what
                    if answer.status >= 400 and method != "HEAD":
                        found = json.loads(text)
                        assert found["reason"], what
                        assert len(text) < 8_000, what
                        assert found["code"] != EngineError.code, what
        assert not [record for record in caplog.records if record.exc_info], caplog.text
    finally:
        await broker.close()


async def test_hostile_requests(tmp_path, caplog):
    await attack(tmp_path, 1, 300, caplog)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
async def test_hostile_requests_for_long(tmp_path, caplog):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    await attack(tmp_path, seed, 30_000, caplog)
