"""A wheel of this tree for each Python, and a clean environment with nothing else in it.

Both are made once for all tests, processes and runs, below build/firstuse, and again when the sources have changed.
What is built is a source distribution, unpacked: a file that it lacks is missing here, too. C files are those of the
usual build where they are current, as Cython writes the same for each Python, and so are the modules for this one. For
others they are compiled without optimization, and packages are installed without compiled modules but for those that a
program imports: nothing is measured here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.cli.cli_server import Server, start_server
from tests.kit.programs import ROOT

BUILD = ROOT / "build" / "firstuse"
TREE = BUILD / "tree"
METADATA = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md")
WRITTEN = (".c", ".so", ".pyc")  # by compilers and Python
MAIN = sys.version_info.minor
TOOLS = ("seq", "sh")  # of the system, that the README uses
HIDDEN = ("PYTHON", "ENGINE_", "LD_", "ASAN_", "VIRTUAL_ENV")  # variables of this run, such as those of `make debug`


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and what it needs. There is no compiler on its path, and `CC` fails."""

    folder: Path
    wheel: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join(map(str, (self.folder / "bin", BUILD / "tools")))
        return variables(PATH=path, CC="false", CXX="false", VIRTUAL_ENV=str(self.folder), **more)

    def serve(self, data: Path) -> Server:
        return start_server(data, program=[str(self.folder / "bin" / "engine")], environment=self.variables())

    def run(self, *command: str | Path, at: Path, timeout: float = 600, **more: str) -> str:
        """What a command prints. Raises AssertionError with all of it when the command fails."""
        return run(*command, at=at, env=self.variables(**more), timeout=timeout)


def variables(**changes: str) -> dict[str, str]:
    """Those of this process, without what Python, Engine and the loader would take from them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **changes}


def run(*command: str | Path, at: Path, env: dict[str, str], timeout: float = 1200) -> str:
    path = shutil.which(command[0], path=env["PATH"]) or command[0]
    done = subprocess.run(
        [path, *command[1:]],
        cwd=at,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert not done.returncode, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}"
    return done.stdout


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """One process at a time is in here."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sources() -> list[Path]:
    """What a source distribution for a wheel is made of."""
    found = (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix not in WRITTEN)
    kept = (p for p in found if ".egg-info" not in str(p) and ("_native" not in p.parts or p.suffix != ".html"))
    return [ROOT / name for name in METADATA] + sorted(kept)


@functools.cache
def state() -> str:
    """A name for the contents of all sources."""
    sums = (f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sources())
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()[:16]


def unpack() -> None:
    """Make TREE from a source distribution, with what earlier builds have compiled there."""
    if (TREE / state()).exists():
        return
    copy, fresh = BUILD / "copy", BUILD / "fresh"
    for folder in (copy, fresh):
        shutil.rmtree(folder, ignore_errors=True)
    for path in sources():
        to = copy / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", fresh, at=copy, env=variables(ENGINE_EXT="none"))
    (archive,) = fresh.glob("*.tar.gz")
    run(sys.executable, "-m", "tarfile", "-e", archive, fresh, at=fresh, env=variables())
    (made,) = (path for path in fresh.iterdir() if path.is_dir())
    for path in TREE.rglob("*"):
        if path.suffix in (".c", ".so"):
            to = made / path.relative_to(TREE)
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)
    for path in (ROOT / "src").rglob("*.c"):  # Cython writes those again that are older than their sources
        to = made / path.relative_to(ROOT)
        if to.with_suffix(".pyx").exists() and not to.exists():
            shutil.copy2(path, to)
    shutil.rmtree(TREE, ignore_errors=True)
    made.rename(TREE)
    (TREE / state()).touch()


def lay_out_modules() -> None:
    """Put the modules of the usual build where that of TREE has its own; it makes those again that are out of date."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library = TREE / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for path in (ROOT / "src").rglob(f"*{suffix}"):
        to = library / path.relative_to(ROOT / "src")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)


def builder(minor: int, python: Path) -> Path:
    """A Python with setuptools and the Cython of this process."""
    if minor == MAIN:
        return Path(sys.executable)
    folder = BUILD / "builders" / f"3.{minor}"
    tools = tuple(f"{name}=={version(name)}" for name in ("setuptools", "setuptools-scm", "cython"))
    made, wanted = folder / "bin" / "python", ",".join(tools)
    if not (folder / wanted).exists():
        run(python, "-m", "venv", "--clear", folder, at=BUILD, env=variables())
        run(made, "-m", "pip", "install", "-q", "--no-compile", *tools, at=BUILD, env=variables())
        for path in folder.glob("lib/*/site-packages/Cython/Includes/**/*.pxd"):
            os.utime(path, (0, 0))  # else Cython takes the C files for out of date, and writes the same once more
        (folder / wanted).touch()
    return made


def wheel(minor: int, python: Path) -> Path:
    """The wheel of the current sources, built if there is none yet. Hold `alone("tree")`."""
    folder = BUILD / "wheels" / f"3.{minor}" / state()
    if folder.exists():
        (found,) = folder.glob("*.whl")
        return found
    unpack()
    making = folder.with_name("making")
    for old in folder.parent.glob("*"):
        shutil.rmtree(old)
    with_tools = builder(minor, python)
    if minor != MAIN:
        wheel(MAIN, Path(sys.executable))  # which writes the C files
    else:
        lay_out_modules()
    options = ("-q", "--no-deps", "--no-build-isolation", "--wheel-dir", making)
    run(with_tools, "-m", "pip", "wheel", *options, TREE, at=BUILD, env=variables(CFLAGS="-O0 -g0"))
    making.rename(folder)
    (found,) = folder.glob("*.whl")
    return found


def installed(minor: int, python: Path, extra: str, more: list[str]) -> Installed:
    """The environment of this Python, with the wheel, its `extra`, and more packages."""
    with alone("tree"):
        built = wheel(minor, python)
        tools = BUILD / "tools"
        tools.mkdir(exist_ok=True)
        for name in TOOLS:
            if not (tools / name).exists() and (found := shutil.which(name)):
                (tools / name).symlink_to(found)
    with alone(f"3.{minor}"):
        made = Installed(BUILD / "environments" / f"3.{minor}", built)
        needs = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
        wanted, stamp = [str(python), extra, *more, needs, str(built)], made.folder / "wanted.json"
        there = json.loads(stamp.read_text()) if stamp.exists() else []
        if there != wanted:
            stamp.unlink(missing_ok=True)
            install = (made.python, "-m", "pip", "install", "-q", "--no-compile")
            if there[:-1] == wanted[:-1]:
                made.run(*install, "--force-reinstall", "--no-deps", built, at=BUILD)
            else:
                run(python, "-m", "venv", "--clear", made.folder, at=BUILD, env=variables())
                made.run(*install, f"{built}[{extra}]", *more, at=BUILD)
            stamp.write_text(json.dumps(wanted))
    return made
