"""`engine tokens`: the file has hashes alone, and a token is shown once."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

from engine.broker.rights.token_file import TokenFile

Run = Callable[..., Any]


def test_a_token_is_made_found_and_revoked(engine: Run, tmp_path):
    path = tmp_path / "roles"
    made = [engine("tokens", "create", role, "--file", path) for role in ("ann", "ann", "bob")]
    assert [result.code for result in made] == [0, 0, 0]
    tokens = [result.out.strip() for result in made]
    assert len(set(tokens)) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(token in path.read_text() for token in tokens)
    found = TokenFile(str(path))
    assert [found.find(token)[0] for token in tokens] == ["ann", "ann", "bob"]
    assert engine("tokens", "list", "--file", path).out == "ann\t2\nbob\t1\n"
    assert engine("tokens", "revoke", "ann", "--file", path).code == 0
    assert found.refresh()
    assert [found.find(token) is not None for token in tokens] == [False, False, True]
    missing = engine("tokens", "revoke", "ann", "--file", path)
    assert (missing.code, len(missing.err.splitlines())) == (1, 1)


def test_a_role_is_named_as_other_things_are(engine: Run, tmp_path):
    result = engine("tokens", "create", "a/b", "--file", tmp_path / "roles")
    assert result.code == 1
    assert "role must have no '/'" in result.err
    assert not (tmp_path / "roles").exists()


def test_a_file_that_is_no_text_is_named(engine: Run, tmp_path):
    path = tmp_path / "roles"
    path.write_bytes(b"ann: sha256:\xff\xfe")
    for words in (("create", "ann"), ("list",), ("revoke", "ann")):
        result = engine("tokens", *words, "--file", path)
        assert (result.code, result.err) == (1, f"engine: {path} cannot be read: it is not text\n")
    assert path.read_bytes() == b"ann: sha256:\xff\xfe"
