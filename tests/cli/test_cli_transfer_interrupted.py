"""`engine export` and `engine import` that Ctrl-C ends: what they say, and that they go on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import engine as api
from tests.cli.test_cli_transfer import by_key, fill, read
from tests.kit.programs import environment, program


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_one_that_is_interrupted_says_where_it_stands_and_goes_on(engine: Any, tmp_path: Path, form: str):
    data, file = tmp_path / "data", tmp_path / f"t.{form}"
    with api.open(data) as e:
        e.admin.create_topic("t", segments=1)
        fill(e, "t", [(b"k%d" % (n % 50), b"v%d" % n, n, {}) for n in range(3000)])
    for verb, topic in (("export", "t"), ("import", "copy")):
        done = subprocess.run(
            program("tests.cli.transfer_program", verb, topic, file, "--data", data), capture_output=True, text=True,
            env=environment() | {"INTERRUPT_AT": "2"}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 130, done.stderr
        (said,) = done.stderr.split("\n\n")[0].splitlines()
        if verb == "export":
            assert re.fullmatch(rf"interrupted after [\d,]+ messages: what is written of {file} is kept, .*", said)
        else:
            assert re.match(rf"interrupted after [\d,]+ rows of {file}, of which [\d,]+ were sent: repeat ", said)
        assert engine(verb, topic, file, "--data", data).code == 0
    with api.open(data) as e:
        assert by_key(read(e, "copy")) == by_key(read(e, "t"))


def test_one_from_the_standard_input_says_how_it_goes_on(engine: Any, tmp_path: Path):
    rows = "value\n" + "".join(f"{n}\n" for n in range(100))
    for named, said in (("--name x", "the same rows and --name x"), ("", "cannot be completed")):
        done = subprocess.run(
            program("tests.cli.transfer_program", "import", "t", "-", "--format", "csv", "--data", tmp_path / "d",
                    *named.split()),
            input=rows, capture_output=True, text=True, env=environment() | {"INTERRUPT_AT": "1"}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 130, done.stderr
        assert said in done.stderr
