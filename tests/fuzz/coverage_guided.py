"""One decoder under atheris, in a process of its own.

usage: python -m tests.fuzz.coverage_guided TARGET FOLDER [libFuzzer options]
"""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("the coverage-guided fuzzers need atheris: pip install atheris (CPython on Linux)")

with atheris.instrument_imports(include=["engine"], exclude=["engine._native"]):
    from tests.fuzz.targets import targets

# One image may take so long, and one allocation be so large, before libFuzzer calls it a fault.
LIMITS = ("-timeout=10", "-malloc_limit_mb=64", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1")


def main(name: str, folder: Path, options: list[str]) -> None:
    """Does not return: libFuzzer ends the process."""
    target = targets()[name]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)

    def once(data: bytes) -> None:
        for image in (data, target.reseal(data)):
            with contextlib.suppress(*target.errors):
                target.decode(image)

    seed = random.SystemRandom().randrange(1, 2**31)
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={folder}/", f"-seed={seed}", *LIMITS, *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
