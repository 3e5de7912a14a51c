"""The suite has no chance in it: what is random has a fixed seed, but in the long forms."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.tidy.source_tree import ROOT, files, relative

TESTS = ROOT / "tests"
FUZZERS = TESTS / "fuzz" / "coverage_guided.py"  # a program of its own, which prints its seed

# Calls that draw from the system's randomness; the latter three only without a seed.
UNSEEDED = {"urandom", "SystemRandom", "token_bytes", "token_hex", "randbits", "randbelow"}
UNSEEDED_ALONE = {"Random", "default_rng", "seed"}
MODULES = {"random", "secrets"}


def is_fuzz(node: ast.AST) -> bool:
    """Whether a function, or a file by its `pytestmark`, is a long form."""
    marks = [*getattr(node, "decorator_list", ())]
    for statement in getattr(node, "body", ()) if isinstance(node, ast.Module) else ():
        if isinstance(statement, ast.Assign) and any(ast.unparse(t) == "pytestmark" for t in statement.targets):
            marks.append(statement.value)
    return any("pytest.mark.fuzz" in ast.unparse(mark) for mark in marks)


def unseeded(node: ast.AST) -> Iterator[ast.Call]:
    """The calls below a node that no seed decides, but for those in long forms."""
    if is_fuzz(node):
        return
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        module, _, called = name.rpartition(".")
        alone = called in UNSEEDED_ALONE and not (node.args or node.keywords)
        if called in UNSEEDED or alone or (module in MODULES and called not in UNSEEDED_ALONE):
            yield node
    for child in ast.iter_child_nodes(node):
        yield from unseeded(child)


def test_what_is_random_has_a_seed():
    faults = [
        f"{relative(path)}:{call.lineno} {ast.unparse(call)} has no fixed seed"
        for path in files(".py", under=TESTS)
        if path not in (FUZZERS, TESTS / "conftest.py")
        for call in unseeded(ast.parse(path.read_text()))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_hypothesis_draws_the_same_each_time(pytestconfig: pytest.Config):
    fuzz = "not fuzz" not in pytestconfig.getoption("markexpr")
    assert settings.default is not None
    assert settings.default.derandomize is not fuzz
    assert settings.default.database is None
    assert settings.default.deadline is None


@pytest.mark.parametrize(("code", "count"), [
    ("random.Random()", 1), ("random.Random(1)", 0), ("Random(seed)", 0), ("random.randrange(3)", 1),
    ("rng.randrange(3)", 0), ("os.urandom(4)", 1), ("np.random.default_rng()", 1), ("np.random.default_rng(5)", 0),
    ("random.SystemRandom().randrange(2)", 1), ("random.seed()", 1), ("random.seed(7)", 0),
    ("@pytest.mark.fuzz\ndef test_a():\n    random.random()", 0),
    ("def test_a():\n    random.random()", 1),
    ("pytestmark = pytest.mark.fuzz\ndef test_a():\n    random.random()", 0),
])  # fmt: skip
def test_the_search_finds_what_it_should(code: str, count: int):
    assert len(list(unseeded(ast.parse(code)))) == count
