"""Builds one extension module per `src/engine/_native/*/*.pyx`; everything else is in pyproject.toml.

ENGINE_DEBUG=1      checks of bounds, initialisation, division and costly invariants, and frame pointers in every module
ENGINE_SANITIZE=1   with ENGINE_DEBUG: address and undefined-behaviour sanitizers as well (they see overflow, too)
ENGINE_EXT=a,b      build only these modules (while working on one of them)
CFLAGS=-O1          a level of optimization there counts instead of ours
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("src/engine/_native")
DEBUG = os.environ.get("ENGINE_DEBUG") == "1"
SANITIZE = os.environ.get("ENGINE_SANITIZE") == "1"
ONLY = {name for name in os.environ.get("ENGINE_EXT", "").split(",") if name}

COMPILE = ["-std=c11", "-Wall", "-Wno-unused-function"]
if DEBUG:
    COMPILE += ["-O1", "-g", "-fno-omit-frame-pointer", "-DENGINE_DEBUG"]
elif "-O" not in os.environ.get("CFLAGS", ""):
    COMPILE += ["-O3", "-g1"]
LINK: list[str] = []
if SANITIZE:
    COMPILE += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    LINK += ["-fsanitize=address,undefined"]

# What Cython writes depends on the directives, so the checked build keeps its C files apart.
C_FILES = "build/debug/c" if DEBUG else None

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": not DEBUG,
    "initializedcheck": DEBUG,
    "embedsignature": True,
    "freethreading_compatible": False,
}


def extensions() -> list[Extension]:
    """One extension per module, in the order of the file names."""
    return [
        Extension(
            f"engine._native.{path.parent.name}.{path.stem}",
            [path.as_posix()],
            include_dirs=[path.parent.as_posix(), (NATIVE / "format").as_posix()],
            depends=[p.as_posix() for p in sorted(NATIVE.glob("*/*.h"))],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
        )
        for path in sorted(NATIVE.glob("*/*.pyx"))
        if not ONLY or path.stem in ONLY
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        include_path=["src"],
        build_dir=C_FILES,
        compiler_directives=DIRECTIVES,
        annotate=os.environ.get("ENGINE_ANNOTATE") == "1",
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
