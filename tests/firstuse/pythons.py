"""The Pythons of this machine that the package may be installed in: one for each minor version from 3.11 on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.kit.programs import ROOT

OLDEST = 11
_NAME = re.compile(r"python3\.(\d+)")
_STATED = re.compile(r"Programming Language :: Python :: 3\.(\d+)")
_PROBE = """
import importlib.util, json, os, sys, sysconfig
print(json.dumps({
    "minor": sys.version_info[1],
    "a CPython": sys.implementation.name == "cpython",
    "a release": sys.version_info.releaselevel == "final",
    "outside of a virtual environment": sys.prefix == sys.base_prefix,
    "with the interpreter lock": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "with its headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "with venv": all(map(importlib.util.find_spec, ("ensurepip", "venv"))),
}))
"""


def stated() -> list[int]:
    """The minor versions that the metadata name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(int(match[1]) for text in project["classifiers"] if (match := _STATED.fullmatch(text)))


def folders() -> Iterator[Path]:
    """Where interpreters are: this one's, on the path, where pyenv and uv keep theirs, and where `make test` does."""
    yield Path(sys.base_prefix, "bin")
    yield from (Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)
    home = Path.home()
    kept = {
        Path(os.environ.get("PYENV_ROOT") or home / ".pyenv", "versions"),
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python"),
    }
    yield from (folder for place in sorted(kept) for folder in sorted(place.glob("*/bin"), reverse=True))
    yield from sorted((ROOT / "build" / "pythons").glob("*/bin"))


def executables(minor: int) -> Iterator[Path]:
    """The files of that name, in the order in which they are tried."""
    yield from dict.fromkeys(path for folder in folders() if (path := folder / f"python3.{minor}").is_file())


def minors() -> list[int]:
    """The versions to test: those of the metadata, and whatever else is on this machine."""
    names = (path.name for folder in dict.fromkeys(folders()) for path in folder.glob("python3.*"))
    found = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
    return sorted({minor for minor in found if minor >= OLDEST}.union(stated()))


def interpreter(minor: int) -> Path | str:
    """The first that can have the package, or the reason why there is none."""
    reason = f"Python 3.{minor} is not on this machine"
    for path in executables(minor):
        try:
            done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):  # a shim of pyenv for a version that is not chosen
            continue
        facts = json.loads(done.stdout)
        if facts.pop("minor") == minor:
            if all(facts.values()):
                return path
            reason = f"{path} must be {', '.join(what for what, so in facts.items() if not so)}"
    return reason
