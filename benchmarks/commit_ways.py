"""How a commit of the metadata may reach SQLite: `python benchmarks/commit_ways.py [--commits N] [--folder DIR]`.

Three ways, each in turns, on a thread as the store has it: native calls of the library that Python's `sqlite3` uses,
`sqlite3` itself, and APSW (`pip install apsw`). A commit is a step of some rows. Printed are the processor time and the
time of a commit, while nothing else runs and while the loop is busy (its own processor time is included then).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from engine.aio.workers import ThreadWorkers
from engine.metadata.commits import ImageCommits, StepCommits
from engine.metadata.image import _PRAGMAS, STATEMENTS, Image, ImageStep
from engine.metadata.library import find_library
from engine.storage.disk.metadata_commits import NativeCommits

ROWS = (1, 32)


class ApswImage:
    """Commits through APSW; the file is one that an Image has made."""

    def __init__(self, path: Path) -> None:
        import apsw

        self._database = apsw.Connection(str(path))
        self._database.execute(_PRAGMAS)

    def commit(self, step: ImageStep) -> None:
        run = self._database.execute
        run(STATEMENTS["begin"])
        if step.removed:
            self._database.executemany(STATEMENTS["remove"], [(key,) for key in step.removed])
        self._database.executemany(STATEMENTS["put"], step.put)
        run(STATEMENTS["summary"], step.summary)
        run(STATEMENTS["commit"])

    def close(self) -> None:
        self._database.close()


@contextlib.asynccontextmanager
async def busy() -> AsyncIterator[None]:
    """The loop has work of a millisecond in each of its turns, and holds the interpreter lock for it."""

    async def work() -> None:
        while True:
            end = time.perf_counter() + 0.001
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def on(owner: ThreadWorkers, work: Callable[[], Any]) -> Any:
    """What it returns on the thread of the owner."""
    done = asyncio.get_running_loop().create_future()
    owner.post(work, lambda result, error: done.set_exception(error) if error else done.set_result(result))
    return await done


def loaded(path: Path) -> Image:
    image = Image(path)
    image.load()
    return image


@contextlib.asynccontextmanager
async def opened(way: str, path: Path) -> AsyncIterator[StepCommits]:
    owner = ThreadWorkers(1)
    image: Any = await on(owner, lambda: loaded(path))
    if way == "native":
        library = find_library()
        assert library is not None, "this Python's SQLite cannot be called natively"
        connection = await on(owner, lambda: image.connect(library))
        commits: StepCommits = NativeCommits(connection)
    else:
        if way == "apsw":
            await on(owner, image.close)
            image = await on(owner, lambda: ApswImage(path))
        commits = ImageCommits(image, owner)
    try:
        yield commits
    finally:
        commits.close()
        await on(owner, image.close)
        owner.close()


async def run(way: str, folder: Path, count: int) -> dict[tuple[str, int, str], tuple[float, float]]:
    """{(way, rows, state): measured()}."""
    found = {}
    async with opened(way, folder / f"{way}.db") as commits:
        for rows in ROWS:
            for state in ("idle", "busy"):
                async with busy() if state == "busy" else contextlib.nullcontext():
                    found[way, rows, state] = await measured(commits, count, rows)
    return found


async def measured(commits: StepCommits, count: int, rows: int) -> tuple[float, float]:
    """Processor time of the process, and time, of a commit: microseconds."""
    loop = asyncio.get_running_loop()
    took = []
    began = time.process_time()
    for i in range(count):
        put = [(f"/k/{j}", b"x" * 200, i + 1, i, i, None, None, 7) for j in range(rows)]
        done = loop.create_future()
        start = time.perf_counter()
        step = ImageStep(put, [], (i + 1, rows, 1, 1), None)
        commits.post(step, lambda _, error, done=done: done.set_exception(error) if error else done.set_result(None))
        await done
        took.append(time.perf_counter() - start)
    return (time.process_time() - began) / count * 1e6, statistics.median(took) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for _ in range(options.turns):
        for way in ("native", "sqlite3", "apsw"):
            with tempfile.TemporaryDirectory(dir=options.folder) as name:
                for key, result in asyncio.run(run(way, Path(name), options.commits)).items():
                    found.setdefault(key, []).append(result)
    for (way, rows, state), results in sorted(found.items(), key=lambda item: (item[0][1:], item[0][0])):
        spent, took = (statistics.median(values) for values in zip(*results, strict=True))
        print(f"{rows:>3} rows, {state}: {way:<8} {spent:8.0f} us of processor time, {took:8.0f} us a commit")


if __name__ == "__main__":
    main()
