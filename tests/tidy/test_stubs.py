"""Every Cython module has its table of contents (.pxd) and its stub (.pyi), and the stub says what is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.tidy.signatures import ATTRIBUTE, CLASS, Shape, of_cython, of_stub
from tests.tidy.source_tree import NATIVE, files, module_name, relative

MODULES = files(".pyx", under=NATIVE)
STUBBED = [p for p in MODULES if p.with_suffix(".pyi").exists()]


def named(path: Path) -> str:
    return path.stem


def test_every_module_has_a_contents_page_and_a_stub():
    missing = [relative(p.with_suffix(s)) for p in MODULES for s in (".pxd", ".pyi") if not p.with_suffix(s).exists()]
    assert not missing, f"missing beside their .pyx: {missing}"


def test_no_stub_outlives_its_module():
    orphans = [relative(p) for p in files(".pyi", under=NATIVE) if not p.with_suffix(".pyx").exists()]
    assert not orphans, f"stubs without a .pyx: {orphans}"


def show(shape: Shape) -> str:
    return shape if isinstance(shape, str) else f"({', '.join(shape)})"


def disagreements(code: dict[str, Shape], stub: dict[str, Shape]) -> list[str]:
    """What the stub hides, invents or says differently."""
    faults = [f"{name} is in the .pyx only" for name in sorted(code.keys() - stub.keys()) if not optional(name, code)]
    faults += [f"{name} is in the .pyi only" for name in sorted(stub.keys() - code.keys()) if not optional(name, stub)]
    faults += [
        f"{name} is {show(code[name])} in the .pyx and {show(stub[name])} in the .pyi"
        for name in sorted(code.keys() & stub.keys())
        if code[name] != stub[name]
    ]
    return faults


def optional(name: str, side: dict[str, Shape]) -> bool:
    """A constructor without parameters, and type variables and aliases of a stub, need no partner."""
    return side[name] == ("self",) and name.endswith("__init__")


@pytest.mark.parametrize("pyx", STUBBED, ids=named)
def test_stub_agrees_with_the_source(pyx: Path):
    faults = disagreements(of_cython(pyx), of_stub(pyx.with_suffix(".pyi")))
    assert not faults, f"\n{relative(pyx)} and its stub disagree:\n" + "\n".join(faults)


@pytest.mark.parametrize("pyx", STUBBED, ids=named)
def test_stub_agrees_with_what_was_built(pyx: Path):
    """Every public name of the stub can be imported, and is a class where the stub says class."""
    module = importlib.import_module(module_name(pyx))
    faults = []
    for name, shape in of_stub(pyx.with_suffix(".pyi")).items():
        value: object = module
        for part in name.split("."):
            value = getattr(value, part, None) if part != "__init__" else value
        if value is None:
            faults.append(f"{name} is in the stub, not in the built module")
        elif (shape == CLASS) is not isinstance(value, type) and not name.endswith("__init__"):
            faults.append(f"{name} is {show(shape)} in the stub and {type(value).__name__} in the built module")
    assert not faults, "\n" + "\n".join(faults)


def test_the_readers_see(tmp_path: Path):
    """Both readers give one shape for what means the same, and differ where the texts do."""
    pyx, pyi = tmp_path / "x.pyx", tmp_path / "x.pyi"
    pyx.write_text(
        "A = 1\ncdef int hidden(int x):\n    y = 2\n    return y\n\n"
        "def f(const uint8_t[::1] data not None, int n=3, *, object name=None):\n    return 1\n\n"
        "cdef class C:\n    cdef readonly int size, count\n    cdef int secret\n\n"
        "    def __cinit__(self, int size):\n        pass\n\n"
        "    @property\n    def half(self) -> int:\n        return 1\n\n"
        "    def g(C self, key: bytes | None = None, *args):\n        def inner(q):\n            pass\n"
    )
    pyi.write_text(
        "A: int\ndef f(data: bytes, n: int = 3, *, name: str | None = None) -> int: ...\n"
        "class C:\n    size: int\n    @property\n    def count(self) -> int: ...\n    half: int\n"
        "    def __init__(self, size: int) -> None: ...\n"
        "    def g(self, key: bytes | None = None, *args: int) -> None: ...\n"
    )
    assert of_cython(pyx) == of_stub(pyi)
    assert of_stub(pyi)["f"] == ("data", "n=", "*", "name=")
    assert of_stub(pyi)["C.half"] == ATTRIBUTE
    pyi.write_text(pyi.read_text().replace("n: int = 3", "n: int").replace("count", "counts"))
    assert disagreements(of_cython(pyx), of_stub(pyi)) == [
        "C.count is in the .pyx only",
        "C.counts is in the .pyi only",
        "f is (data, n=, *, name=) in the .pyx and (data, n, *, name=) in the .pyi",
    ]
