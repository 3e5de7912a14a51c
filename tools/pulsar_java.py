"""Brings Apache Pulsar's Java clients and its server, for `make interop`: `python pulsar_java.py FOLDER`.

FOLDER gets the libraries (jars/, those of the server in server/, by Maven), the agent that tests speak to (classes/, by
javac), and the path of the java that runs it (a file java). It says in a sentence what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
JAVA = ROOT / "tests" / "interop" / "java"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def program(name: str) -> str | None:
    """A program of the machine's JDK."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else None
    return found or shutil.which(name)


def main(folder: Path) -> str | None:
    """What is missing, None for nothing."""
    java, javac, maven = program("java"), program("javac"), shutil.which("mvn")
    if java is None or javac is None or maven is None:
        return "make interop needs a JDK of version 17 or newer and Maven: install openjdk-17-jdk-headless and maven."
    jars, classes = folder / "jars", folder / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    for project, into in ((JAVA, jars), (JAVA / "server", folder / "server")):
        command = [maven, "-q", "-B", "-f", str(project / "pom.xml"), COPY, "-DincludeScope=runtime"]
        command.append(f"-DoutputDirectory={into.absolute()}")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            return f"Apache Pulsar did not come from Maven: {' '.join(done.stdout.split())[:300]}"
    subprocess.run([javac, "-cp", f"{jars}/*", "-d", classes, *JAVA.glob("*.java")], check=True)
    (folder / "java").write_text(java)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
