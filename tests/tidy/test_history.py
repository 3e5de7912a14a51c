"""`benchmarks/history.py`: releases, rounds, steps, and pages that a browser draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.chromium import chromium
from tests.tidy.source_tree import ROOT

RATE, DELAY = "bench_user.SendOneByOne.track_rate", "bench_user.OpenAfterACrash.track_seconds"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "history", raising=False)
    import history  # type: ignore[import-not-found]

    return history


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four commits: v0.1, v0.2, one without a tag, and v0.3, at which the work tree is."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("v0.1", "v0.2", "", "v0.3"):
        git(folder, "commit", "-q", "--allow-empty", "-m", name or "between")
        if name:
            git(folder, "tag", name)
    return folder


def test_releases_are_the_newest_tags_before_this_tree(history: ModuleType, repository: Path):
    assert history.releases([], 5, repository) == ["v0.1", "v0.2"]
    assert history.releases([], 1, repository) == ["v0.2"]
    assert history.releases(["v0.1"], 5, repository) == ["v0.1"]


def test_a_repository_without_tags_is_told_what_to_do(history: ModuleType, repository: Path):
    for tag in ("v0.1", "v0.2"):
        git(repository, "tag", "-d", tag)
    with pytest.raises(SystemExit, match=r"no tag v\*.*REVISIONS"):
        history.releases([], 5, repository)


def results(commit: str, rate: list[float | None], seconds: float) -> dict[str, Any]:
    """A file as asv writes it."""
    return {
        "commit_hash": commit,
        "result_columns": ["result", "params", "version"],
        "results": {RATE: [rate, [["'served'", "'embedded'"]]], DELAY: [[seconds], []]},
    }


def rounds_of(folder: Path, values: list[list[tuple[str, list[float | None], float]]]) -> list[Path]:
    """Folders as `measured` leaves them: (commit, rates, seconds) of each release in each round."""
    found = []
    for number, releases in enumerate(values):
        at = folder / f"round-{number + 1}" / "results"
        (at / "box").mkdir(parents=True)
        (at / "box" / "machine.json").write_text('{"machine": "box", "version": 1}')
        (at / "benchmarks.json").write_text(json.dumps({RATE: {"unit": "messages/s"}, DELAY: {"unit": "s"}}))
        for commit, rate, seconds in releases:
            (at / "box" / f"{commit}.json").write_text(json.dumps(results(commit, rate, seconds)))
        found.append(at.parent)
    return found


@pytest.fixture
def three_rounds(tmp_path: Path) -> list[Path]:
    """`served` falls by half, `embedded` fails once, the delay gets shorter, all in each round."""
    return rounds_of(
        tmp_path,
        [
            [("a", [100.0 * n, 50.0], 3.0), ("b", [50.0 * n, None if n == 2 else 50.0], 1.5 + n / 100)]
            for n in (1, 2, 3)
        ],
    )


def test_a_step_is_what_all_rounds_say(history: ModuleType, three_rounds: list[Path]):
    found = [history.Release("v1", "a", ROOT), history.Release("v2", "b", ROOT)]
    figures = {figure.name: figure for figure in history.figures(three_rounds, found)}
    assert list(figures) == ["open after a crash", "send one by one, embedded", "send one by one, served"]
    assert figures["send one by one, served"].values == {"v1": [100.0, 200.0, 300.0], "v2": [50.0, 100.0, 150.0]}
    kinds = {name: [step.kind for step in history.steps(figure)] for name, figure in figures.items()}
    assert kinds == {
        "send one by one, served": ["worse"],
        "send one by one, embedded": [""],
        "open after a crash": ["better"],
    }


@pytest.mark.parametrize(
    ("unit", "ratios", "kind"),
    [
        ("messages/s", [1.1, 1.2], "better"),
        ("messages/s", [0.9, 0.8], "worse"),
        ("ms", [1.1, 1.2], "worse"),
        ("ms", [0.9, 0.5], "better"),
        ("ms", [0.9, 1.1], ""),
        ("ms", [1.01, 1.02], ""),
        ("ms", [5.0], ""),
    ],
)
def test_a_step_has_a_direction(history: ModuleType, unit: str, ratios: list[float], kind: str):
    assert history.Step(history.Figure("x", unit, {}), "a", "b", ratios).kind == kind


def test_asv_gets_the_medians_of_all_rounds(history: ModuleType, three_rounds: list[Path], tmp_path: Path):
    history.merged(three_rounds, tmp_path / "all")
    written = json.loads((tmp_path / "all" / "results" / "box" / "b.json").read_text())["results"]
    assert written[RATE][0] == [100.0, 50.0]
    assert written[DELAY][0] == [1.52]


async def test_the_page_is_drawn_by_a_browser(history: ModuleType, three_rounds: list[Path], tmp_path: Path):
    found = [history.Release("v1 <&>", "a", ROOT), history.Release("v2", "b", ROOT)]
    figures = history.figures(three_rounds, found)
    (tmp_path / "index.html").write_text(history.page(figures, 3))
    faults: list[str] = []
    asked: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        await page.goto((tmp_path / "index.html").as_uri())
        assert await page.locator("h2").all_inner_texts() == ["Steps", *(figure.name for figure in figures)]
        assert await page.locator("tr.worse").all_inner_texts() == [
            "send one by one, served\tv2\t0.50 (0.50–0.50) × v1 <&>\tworse"
        ]
        assert await page.locator("tr.better").count() == 1
        assert await page.locator("svg").count() == 3
        for kind, count in (("worse", 1), ("better", 1)):
            marks = page.locator(f"svg #{kind}")
            assert await marks.count() == count
            box = await marks.first.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) > 0
        assert await page.locator("svg").first.get_by_text("v1 <&>").count() == 1
    assert not faults
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.timeout(300)
def test_two_releases_are_run_and_published(history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """asv itself, over this tree under two commits, with one benchmark, tiny."""
    monkeypatch.setenv("ENGINE_BENCH_TINY", "1")
    commits = history.git("rev-list", "--first-parent", "--max-count=2", "HEAD").split()
    if len(commits) < 2:
        pytest.fail("this clone has no history: fetch it with git fetch --unshallow")
    found = [history.Release("before", commits[1], ROOT), history.Release("this tree", commits[0], ROOT)]
    folders = history.measured(found, 1, r"^bench_user\.SendInBulk", tmp_path)
    figures = history.publish(folders, found, tmp_path)
    assert [figure.name for figure in figures] == ["send in bulk, embedded", "send in bulk, served"]
    assert all(list(map(len, figure.values.values())) == [1, 1] for figure in figures)
    assert "send in bulk, served" in (tmp_path / "index.html").read_text()
    index = json.loads((tmp_path / "asv" / "index.json").read_text())
    assert "bench_user.SendInBulk.track_rate" in index["benchmarks"]
    graphs = [json.loads(path.read_text()) for path in (tmp_path / "asv" / "graphs").rglob("bench_user*.json")]
    assert any(len(points) == 2 for points in graphs)
