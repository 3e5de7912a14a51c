"""The wheel of `faststream-engine`: what is in it, and the page's first program with it in a clean environment."""

from __future__ import annotations

import shutil
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.firstuse.wheels import Installed, run, variables
from tests.kit.pages import programs
from tests.kit.programs import ROOT

PACKAGE = ROOT / "bindings" / "faststream"
SOURCES = PACKAGE / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faststream")
    shutil.copytree(PACKAGE, folder / "copy", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "build"))
    options = ("-q", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "copy", at=folder, env=variables())
    (made,) = folder.glob("faststream_engine-*-py3-none-any.whl")
    return made


def test_its_wheel_has_every_module_and_says_what_it_needs(wheel: Path):
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = HeaderParser().parsestr(opened.read(about).decode())
    wanted = {path.relative_to(SOURCES).as_posix() for path in SOURCES.glob("faststream_engine/**/*.py")}
    assert {name for name in names if ".dist-info/" not in name} == wanted | {"faststream_engine/py.typed"}
    needs = [need.partition(";")[0].strip() for need in said.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [need for need in needs if not need.startswith("faststream")] == ["engine"]
    assert len(needs) == 2


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
def test_the_page_runs_in_an_environment_with_nothing_but_the_wheels(installed: Installed, wheel: Path, tmp_path: Path):
    clean = Installed(tmp_path / "clean", wheel)
    run(sys.executable, "-m", "venv", clean.folder, at=tmp_path, env=variables())
    clean.run(clean.python, "-m", "pip", "install", "-q", installed.wheel, wheel, at=tmp_path)
    assert clean.run("pip", "check", at=tmp_path).strip() == "No broken requirements found."
    (tmp_path / "bar.py").write_text(next(iter(programs(ROOT / "docs" / "faststream.md"))))
    assert "tea for 8" in clean.run("python", "bar.py", at=tmp_path, PYTHONWARNINGS="error").splitlines()
