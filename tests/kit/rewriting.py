"""What a fresh clone pays once: pytest writes the assertions of each test file anew before it is imported.

All workers of a run import all files in the same order, and each would rewrite nearly every file for itself. So each
first rewrites a share of its own, into the files that pytest reads again (`__pycache__/*-pytest-*.pyc`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def share(files: list[Path], number: int, count: int) -> list[Path]:
    """The files of one of so many workers; together they have all of them, each once."""
    return sorted(files)[number::count]


def files_of(config: pytest.Config) -> list[Path]:
    """The test files of the folders that this run was told of."""
    folders = [config.invocation_params.dir / argument for argument in config.args]
    return [path for folder in folders if folder.is_dir() for path in folder.rglob("test_*.py")]


def rewrite_share(config: pytest.Config, files: list[Path]) -> list[Path]:
    """Rewrite those of these files that are not; which they were."""
    state = config.stash.get(rewrite.assertstate_key, None)
    done: list[Path] = []
    if state is None or state.mode != "rewrite":
        return done
    for path in files:
        to = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, to, state.trace) is None and rewrite.try_makedirs(to.parent):
            source, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, source, to)
            done.append(path)
    return done
