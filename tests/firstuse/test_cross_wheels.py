"""`make wheels`: names and tags, the same bytes twice, and (in the long form) one that is built, audited and used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.programs import ROOT

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


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels_tool", ROOT / "tools" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "wheels_tool", module)
    spec.loader.exec_module(module)
    return module


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
