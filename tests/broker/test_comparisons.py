"""Secrets are compared in constant time: by hmac.compare_digest, as digests of one length, with all there are."""

from __future__ import annotations

import ast
import hmac
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.rights.claims import Claims
from engine.broker.rights.token_file import TokenFile, line_of
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.tokens import is_cluster_token, token_refusal
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.model.names import TopicName

SOURCES = Path(engine.__file__).parent
SECRET_ANYWHERE = ("token", "secret", "seal", "password")
NO_PROOFS = {  # a client looks at what is its own
    "client/base/encryption.py: secret[32:] == ident",
    "client/base/options.py: token != token.strip()",
}
SECRET = ("token", "secret", "given", "expected", "digest", "seal", "password", "signature")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What is compared in constant time."""
    found: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        found.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    return found


@pytest.mark.parametrize("token", ["first", "last", "none of them", ""])
def test_a_token_is_compared_with_each_of_the_file(tmp_path: Path, compared: list[Any], token: str) -> None:
    """Wherever its line is, if it has one: so nothing tells whether there is such a role."""
    names = ["first", *(f"other-{number}" for number in range(20)), "last"]
    (tmp_path / "roles").write_text("".join(line_of(name, name) + "\n" for name in names))
    found = TokenFile(str(tmp_path / "roles")).find(token)
    assert (found and found[0]) == (token if token in names else None)
    assert len(compared) == len(names)
    assert {len(one) for pair in compared for one in pair} == {32}


@pytest.mark.parametrize("given", ["the token", "the tokem", "t", "x" * 5_000, "\ud800"])
def test_shared_tokens_are_compared_as_digests(compared: list[Any], given: str) -> None:
    assert (token_refusal(BrokerConfig(auth_token="the token"), given) is None) == (given == "the token")
    assert is_cluster_token(BrokerConfig(cluster_token="the token"), given) == (given == "the token")
    assert [len(one) for pair in compared for one in pair] == [32] * 4


async def test_seals_are_compared_whole(compared: list[Any]) -> None:
    claims, topic = Claims(random.Random(1)), TopicName.parse("orders")
    await claims.load(MemoryMetadataStore(SystemClock()))
    seal = claims.seal((1, 2, 3), topic, "p", "ann")
    assert claims.sealed(seal, (1, 2, 3), topic, "p", "ann")
    assert not claims.sealed(seal, (1, 2, 4), topic, "p", "ann")
    assert not claims.sealed((seal[0], seal[1] ^ 1), (1, 2, 3), topic, "p", "ann")
    assert len(compared) == 3
    for none in (None, (-1, 0), (0, 1 << 60)):
        assert not claims.sealed(none, (1, 2, 3), topic, "p", "ann")


def test_no_secret_is_compared_otherwise() -> None:
    """In the rooms that prove what a peer is: no == of something that is called a token, a digest, a seal, …"""
    for room in ("rights", "settings"):
        for path in sorted((SOURCES / "broker" / room).glob("*.py")):
            assert not list(_compared(path.read_text(), SECRET, ast.Eq | ast.NotEq)), path


def test_no_secret_is_compared_otherwise_anywhere() -> None:
    """In all of the source, under the names that nothing but secrets has. Nor is one looked up in a collection."""
    found = {
        f"{path.relative_to(SOURCES)}: {text}"
        for path in sorted(SOURCES.rglob("*.py"))
        for text in _compared(path.read_text(), SECRET_ANYWHERE)
    }
    assert found == NO_PROOFS


@pytest.mark.parametrize("text", ["given.token == token", "'x' != self._secret[3:]", "password in known", "a == seal"])
def test_comparisons_are_found(text: str) -> None:
    assert list(_compared(f"if {text}: pass", SECRET_ANYWHERE)) == ([] if text[0] == "'" else [text])


def _compared(source: str, names: tuple[str, ...], kinds: Any = ast.Eq | ast.NotEq | ast.In) -> Iterator[str]:
    """Comparisons in time that depends on what is compared, of something with such a name and no constant."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, kinds) for op in node.ops):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            if any(_is_secret(side, names) for side in sides) and not any(_is_plain(side) for side in sides):
                yield ast.unparse(node)


def _is_secret(side: str, names: tuple[str, ...]) -> bool:
    return any(side.split(".")[-1].strip("_").startswith(name) for name in names)


def _is_plain(side: str) -> bool:
    return side.isdigit() or side[:1] in "\"'" or side == "None"
