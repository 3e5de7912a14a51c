"""Workers share what pytest does once in a fresh clone: each file is rewritten by one of them, and read by all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.kit.rewriting import rewrite_share, share

TEST = "def test_it():\n    one = 1\n    assert one == 2\n"


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_together_they_have_every_file_once(count: int) -> None:
    files = [Path(f"test_{n}.py") for n in range(30)]
    shares = [share(files, number, count) for number in range(count)]
    assert sorted(path for each in shares for path in each) == sorted(files)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_one_rewrote_pytest_reads(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TEST)
    assert rewrite_share(request.config, [file]) == [file]
    (made,) = rewrite.get_cache_dir(file).glob("*.pyc")
    code = rewrite._read_pyc(file, made)
    assert code is not None
    assert "_call_reprcompare" in str([each.co_names for each in code.co_consts if hasattr(each, "co_names")])
    assert rewrite_share(request.config, [file]) == []
    file.write_text(TEST.replace("2", "3000"))
    assert rewrite_share(request.config, [file]) == [file]
    shutil.rmtree(made.parent)
    assert rewrite_share(request.config, [file]) == [file]
