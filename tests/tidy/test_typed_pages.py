"""Programs of pages, as a user's editor and checkers see them: mypy --strict and pyright find nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.pages import programs as programs_of
from tests.tidy.source_tree import ROOT, files, relative

SPARK = re.compile(r"\bpyspark\b")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each program, and with those that say which types there are."""
    folder = tmp_path_factory.mktemp("programs")
    for page in files(".md"):
        for number, code in enumerate(programs_of(page), 1):
            if not SPARK.search(code):  # Spark's own types are no matter of ours
                name = re.sub(r"\W", "_", relative(page).removesuffix(".md"))
                (folder / f"{name}_{number}.py").write_text(code)
    (folder / "typed_uses.py").write_text((ROOT / "tests" / "api" / "typed_uses.py").read_text())
    assert len(list(folder.iterdir())) > 20
    return folder


def checked(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, MYPYPATH=str(ROOT / "src"), PYTHONPATH=str(ROOT / "src"))
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )


def test_programs_pass_mypy(programs: Path):
    """With the settings of the tree, so that what `test_types` has found of the package is not found again."""
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    options.append("--no-error-summary")
    done = checked(["mypy", *options, *sorted(p.name for p in programs.glob("*.py"))], programs)
    assert not done.returncode, "\n" + done.stdout + done.stderr


def test_programs_pass_pyright(programs: Path):
    """basedpyright is pyright, in a package with all that it needs; here it checks what pyright checks."""
    settings = {
        "include": ["*.py"],
        "typeCheckingMode": "standard",
        "reportMissingImports": "none",
        "reportMissingModuleSource": "none",
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    done = checked(["basedpyright", "--project", str(programs)], programs)
    assert not done.returncode, "\n" + done.stdout + done.stderr
