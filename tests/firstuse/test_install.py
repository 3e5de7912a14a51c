"""The package as pip installs it from a wheel: on every Python of the machine, without a compiler."""

from __future__ import annotations

import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.firstuse.pythons import stated
from tests.firstuse.wheels import MAIN, Installed
from tests.kit.programs import ROOT

pytestmark = pytest.mark.timeout(1800)  # the first test of each Python builds its wheel

SOURCES = ("py", "pyi", "pxd", "proto", "binpb")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_are_stated_once():
    """The oldest is what the type checkers and ruff check for, and there is none missing in between."""
    versions = stated()
    oldest = f"3.{versions[0]}"
    assert versions == list(range(versions[0], versions[-1] + 1))
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    connector = tomllib.loads((ROOT / "bindings" / "pyspark" / "pyproject.toml").read_text())["project"]
    assert connector["requires-python"] == f">={oldest}"
    assert MAIN in versions


def test_a_wheel_has_every_module_and_nothing_else(everywhere: Installed):
    source = ROOT / "src"
    wanted = {p.relative_to(source).as_posix() for s in SOURCES for p in source.glob(f"engine/**/*.{s}")}
    wanted |= {path.relative_to(source).with_suffix("").as_posix() for path in source.glob("engine/**/*.pyx")}
    wanted |= {"engine/py.typed", "engine/cli/engine.schema.json", "engine/cli/engine-proxy.schema.json"}
    pages = [source / "engine" / "console" / folder for folder in ("assets", "templates")]
    wanted |= {path.relative_to(source).as_posix() for folder in pages for path in folder.iterdir()}
    with zipfile.ZipFile(everywhere.wheel) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    native = [re.sub(r"\.cpython-[\w-]+\.so$", "", name) for name in names]
    assert sorted(native) == sorted(wanted)


def test_it_was_installed_without_a_compiler(everywhere: Installed, tmp_path: Path):
    path = everywhere.variables()["PATH"]
    assert not [name for name in ("cc", "gcc", "clang", "c++", "g++", "make") if shutil.which(name, path=path)]
    assert everywhere.run("pip", "check", at=tmp_path).strip() == "No broken requirements found."
    where = everywhere.run("python", "-c", "import engine; print(engine.__file__)", at=tmp_path).strip()
    assert Path(where).is_relative_to(everywhere.folder)
    version = everywhere.run("python", "-c", "import sys; print(sys.version_info.minor)", at=tmp_path).strip()
    assert int(version) in stated(), f"pyproject.toml does not state Python 3.{version}, which this machine has"


def test_messages_of_other_protocols_are_made_of_what_is_in_it(installed: Installed, tmp_path: Path):
    program = "from engine.pulsar import messages as p; from engine.metadata.etcd import messages as e; "
    program += "print(len(p.framed('connect')) > 8, e.RangeRequest(key=b'k').SerializeToString())"
    assert installed.run("python", "-c", program, at=tmp_path).split() == ["True", r"b'\n\x01k'"]


def test_the_demo(everywhere: Installed, tmp_path: Path):
    assert "All is well" in everywhere.run("engine", "demo", at=tmp_path)
