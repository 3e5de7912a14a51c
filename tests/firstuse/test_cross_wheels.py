"""`make wheels`: names and tags, and the same bytes twice. In the long form, one that is built, audited and used, and
wheels of what each needs.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.programs import ROOT

# Every required dependency. One is added when the long form has found wheels of it for each of ours.
WITH_WHEELS = {
    "aiohttp", "avro", "click", "cramjam", "fastavro", "msgpack", "msgspec", "multidict", "numpy", "prometheus-client",
    "pyroaring", "rich", "typing_extensions", "uvloop", "yarl", "zstandard",
}  # fmt: skip
GLIBC = {"3.11": 17, "3.12": 17, "3.13": 17, "3.14": 27}  # 2.x, from which on there are wheels of all of these

PROGRAM = """
import sys, engine
from engine._native.format import crc32c
with engine.open(sys.argv[1]) as e:
    with e.producer("t") as producer:
        producer.send_batch([b"x"] * 1000)
        producer.flush()
    with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
        print(len(consumer.receive_batch()), crc32c.__file__.rsplit("/", 1)[1])
"""


def tool(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"{name}_tool", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return tool("wheels", monkeypatch)


def pure(folder: Path) -> Path:
    """What pip makes without modules, in small."""
    path = folder / "engine-0.1.0-py3-none-any.whl"
    about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("engine/__init__.py", "")
        opened.writestr("engine-0.1.0.dist-info/WHEEL", about)
        opened.writestr("engine-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: engine\nVersion: 0.1.0\n")
        opened.writestr("engine-0.1.0.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize("only", ["", "3.14-musllinux", "3.14 macos"])
def test_make_asks_for_some_of_them_by_name(wheels: ModuleType, only: str):
    command = ["make", "-n", "wheels", f"ONLY={only}"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (line,) = (line for line in done.stdout.splitlines() if "tools/wheels.py" in line)
    found = wheels.asked(shlex.split(line.partition("tools/wheels.py")[2]))
    assert (found.only, found.folder) == (only.split(), Path("dist"))


def test_there_is_one_for_each_python_and_platform(wheels: ModuleType):
    assert len(list(wheels.chosen(["linux"]))) == 16
    assert len(list(wheels.chosen([]))) == 24
    (one,) = wheels.chosen(["3.12-musllinux-aarch64"])
    assert one.tag == "cp312-cp312-musllinux_1_2_aarch64"
    assert one.suffix == ".cpython-312-aarch64-linux-musl.so"
    (one,) = wheels.chosen(["3.14-macos-arm64"])
    assert one.tag == "cp314-cp314-macosx_11_0_arm64"
    assert one.suffix == ".cpython-314-darwin.so"
    assert {wheel.platform for wheel in wheels.chosen(["manylinux"])} == {"manylinux-x86_64", "manylinux-aarch64"}


def test_a_wheel_has_the_modules_says_its_tags_and_is_the_same_every_time(wheels: ModuleType, tmp_path: Path):
    (one,) = wheels.chosen(["3.11-manylinux-x86_64"])
    module = tmp_path / "out" / "engine" / "_native" / f"m{one.suffix}"
    module.parent.mkdir(parents=True)
    module.write_bytes(b"\x7fELF")
    plain = pure(tmp_path)
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(wheels.assemble(one, plain, [module], tmp_path / "out", tmp_path / name))
        module.touch()
    first, second = made
    assert first.name == "engine-0.1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as opened:
        assert opened.read(f"engine/_native/m{one.suffix}") == b"\x7fELF"
        said = opened.read("engine-0.1.0.dist-info/WHEEL").decode().splitlines()
    assert said[-3:] == [
        "Root-Is-Purelib: false",
        "Tag: cp311-cp311-manylinux_2_17_x86_64",
        "Tag: cp311-cp311-manylinux2014_x86_64",
    ]


def requirements() -> list[str]:
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return found


def tags(platform: str, python: str) -> list[str]:
    """What pip may take on the oldest system of a platform, `manylinux-x86_64`."""
    system, _, machine = platform.partition("-")
    if system == "macos":
        return [f"macosx_11_0_{machine}"]  # pip knows the older ones itself
    if system == "musllinux":
        return [f"musllinux_1_{minor}_{machine}" for minor in (2, 1, 0)]
    return [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC[python], 4, -1)] + [f"manylinux2014_{machine}"]


def test_each_required_dependency_is_one_that_has_wheels():
    names = {re.match(r"[\w.-]+", text)[0] for text in requirements()}  # type: ignore[index]
    assert names == WITH_WHEELS, "with another one: make fuzz TESTS=tests/firstuse/test_cross_wheels.py, then the list"


def test_the_page_says_from_which_glibc_on_a_wheel_installs(wheels: ModuleType):
    assert tuple(GLIBC) == wheels.PYTHONS
    rows = (ROOT / "docs" / "releasing.md").read_text().splitlines()
    said = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows if row.startswith("| CPython ")}
    assert said == {f"CPython {python}": f"glibc 2.{minor}" for python, minor in GLIBC.items()}


@pytest.mark.fuzz
@pytest.mark.parametrize("python", GLIBC)
@pytest.mark.parametrize("system", ["manylinux", "musllinux", "macos"])
def test_all_that_a_wheel_needs_has_wheels(wheels: ModuleType, python: str, system: str, tmp_path: Path):
    """Also what that needs in turn: pip is asked to install it all, on the oldest system."""
    (here, there) = wheels.chosen([f"{python}-{system}"])
    for one in (here, there):
        platforms = [word for tag in tags(one.platform, python) for word in ("--platform", tag)]
        target = ("--target", tmp_path / "site", *platforms, "--python-version", python, "--only-binary=:all:")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "-q", *target, *requirements()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{one.name}: {done.stderr}"


@pytest.mark.fuzz
def test_the_wheel_for_this_machine_is_audited_installs_without_a_compiler_and_works(
    wheels: ModuleType, tmp_path: Path
):
    made, left_out = wheels.build([wheels.here()], tmp_path / "dist", "-O1")
    assert not left_out
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    environment = {"PATH": str(python.parent), "CC": "false", "HOME": str(tmp_path)}
    subprocess.run([python, "-m", "pip", "install", "-q", str(made[0])], check=True, env=environment, timeout=600)
    command = [python, "-c", PROGRAM, str(tmp_path / "data")]
    said = subprocess.run(
        command, check=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert said.stdout.split() == ["1000", f"crc32c{wheels.here().suffix}"]


@pytest.mark.fuzz
def test_a_wheel_for_aarch64_works_in_an_emulator(wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = tool("aarch64", monkeypatch).made(ROOT / "build" / "aarch64")
    if command is None:
        pytest.skip("Debian's apt-get and dpkg-deb are needed to get an emulator and a Python for aarch64")
    python = Path(command[-1]).name.removeprefix("python")
    made, left_out = wheels.build([wheels.Wheel(python, "manylinux-aarch64")], tmp_path / "dist", "-O1")
    assert not left_out
    platforms = [word for minor in (17, 26, 27, 28) for word in ("--platform", f"manylinux_2_{minor}_aarch64")]
    target = ("--target", tmp_path / "site", *platforms, "--python-version", python, "--only-binary=:all:")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *target, str(made[0])], check=True, timeout=600)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "site")}
    said = subprocess.run(
        [*command, "-c", PROGRAM, str(tmp_path / "data")],
        check=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert said.stdout.split() == ["1000", f"crc32c.cpython-{python.replace('.', '')}-aarch64-linux-gnu.so"]
