"""Every decoder with mutants of what it reads: a value or a typed error; in bounded time and memory."""

from __future__ import annotations

import os
import random
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import AuthenticationError
from engine.limits import ENTRY_SIZE_MAX
from tests.fuzz import token_seeds
from tests.fuzz.mutation import mutant
from tests.fuzz.targets import Target, targets
from tests.kit.programs import environment, program

NAMES = sorted(targets())
ROUNDS = 250
CHUNK_BYTES = 2 * 2**20  # whatever the image says of itself
GROWTH = 64  # times the image's own size
SECONDS_MAX = 5.0  # for one image, on a machine that is busy; a hang is far more


def run(target: Target, data: bytes) -> None:
    """Raises whatever is not a typed error."""
    try:
        target.decode(data)
    except target.errors as e:
        text = str(e)
        assert text, "an error says something"
        assert len(text) < 4_000, f"the text of the error has {len(text)} characters"


def attack(name: str, seed: int, rounds: int) -> None:
    rng, target = random.Random(seed), targets()[name]
    seeds = list(target.seeds())
    assert seeds
    for number in range(rounds):
        data = mutant(rng, seeds)
        if rng.random() < 0.7:
            data = target.reseal(data)
        before = time.perf_counter()
        try:
            run(target, data)
        except BaseException as e:
            raise AssertionError(f"{name}: seed {seed}, round {number}: {data[:4096].hex()}") from e
        assert time.perf_counter() - before < SECONDS_MAX, f"{name}: seed {seed}, round {number}: {data.hex()}"


@pytest.mark.parametrize("name", NAMES)
def test_good_images_are_read(name: str) -> None:
    """Without this the mutants may all be refused at the first byte."""
    target = targets()[name]
    read = 0
    for seed in target.seeds():
        try:
            target.decode(target.reseal(seed))
            read += 1
        except target.errors:
            pass
    assert read


@pytest.mark.parametrize(("verify", "first"), [(token_seeds.by_set, 0), (token_seeds.by_pem, 1)])
def test_a_token_of_each_algorithm_is_read(verify: Callable[[bytes], object], first: int) -> None:
    """HS256 by a JWKS alone; RS256, ES256 and EdDSA by PEM as well. What follows is not believed."""
    found = list(token_seeds.seeds())
    for seed in found[first:4]:
        verify(seed)
    for seed in found[4:]:
        with pytest.raises(AuthenticationError):
            verify(seed)


@pytest.mark.parametrize("name", NAMES)
def test_mutants(name: str) -> None:
    attack(name, 1, ROUNDS)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "wal"])
def test_memory_is_bounded_by_what_was_received(name: str) -> None:
    """A length that lies is not allocated. (`wal` makes its tables once, of a fixed size.)

    What a compressed entry becomes cannot be told before: it may be as large as the largest entry.
    """
    becomes = ENTRY_SIZE_MAX if name in ("entry", "entry-taken") else 0
    rng, target = random.Random(2), targets()[name]
    seeds = list(target.seeds())
    for seed in seeds:  # what is made once
        run(target, seed)
    tracemalloc.start()
    try:
        for _ in range(25):
            data = target.reseal(mutant(rng, seeds))
            tracemalloc.reset_peak()
            base = tracemalloc.get_traced_memory()[0]
            run(target, data)
            peak = tracemalloc.get_traced_memory()[1] - base
            assert peak < CHUNK_BYTES + GROWTH * len(data) + becomes, f"{name}: {peak} bytes for {data.hex()}"
    finally:
        tracemalloc.stop()


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_mutants_for_long(name: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    attack(name, seed, 20_000 if name not in ("log-inspected", "log-whole") else 4_000)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_coverage_guided(name: str, tmp_path: Path) -> None:
    """Mutants that reach new branches are mutated further (libFuzzer). ENGINE_FUZZ_S: seconds for each decoder."""
    seconds = os.environ.get("ENGINE_FUZZ_S", "20")
    done = subprocess.run(
        program("tests.fuzz.coverage_guided", name, tmp_path, f"-max_total_time={seconds}"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=float(seconds) + 120,
        check=False,
    )
    crashes = [path.read_bytes().hex() for path in tmp_path.glob("crash-*")]
    assert done.returncode == 0, f"{name}: {crashes}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
