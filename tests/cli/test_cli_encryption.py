"""`engine produce --encrypt-for`, `engine consume --decrypt-with`, and what `engine inspect` shows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.key_pairs import x25519_pair


def test_lines_are_encrypted_and_decrypted(engine: Any, tmp_path: Path):
    pair, data = x25519_pair(1), tmp_path / "data"
    (tmp_path / "public.pem").write_bytes(pair.public)
    (tmp_path / "private.pem").write_bytes(pair.private)
    (tmp_path / "lines").write_text("apples\npears\n")
    public, private = f"alice={tmp_path / 'public.pem'}", f"alice={tmp_path / 'private.pem'}"
    sent = engine("produce", "t", "--data", data, "--encrypt-for", public, "--file", tmp_path / "lines")
    assert sent.code == 0, sent.err
    read = ("consume", "t", "--data", data, "-n", 2, "--timeout", 60)
    assert sorted(engine(*read, "--decrypt-with", private).out.split()) == ["apples", "pears"]
    refused = engine(*read)
    assert (refused.code, refused.out) == (1, "")
    assert "decryption_keys" in refused.err
    assert engine(*read, "--decrypt-with", "alice").code == 2
    for path in data.rglob("*.log"):
        shown = engine("inspect", path, "--json")
        assert shown.code == 0
        assert "apples" not in shown.out
        if "compression" in shown.out:
            assert "encrypted" in shown.out
