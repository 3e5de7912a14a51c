"""Every parameter of every verb with hostile values: a clear line, bounded and plain, no traceback, no secret."""

from __future__ import annotations

import asyncio
import io
import re
import unicodedata
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings import attempts
from engine.broker.settings.config import BrokerConfig
from engine.cli import lines
from engine.cli.main import cli, main
from tests.cli.test_cli_rights import EXAMPLES, leaves

SECRET = "s3cret-of-root"
SAID_MAX = 4_000  # characters of an error

# click opens --file before it refuses another option, and leaves it to the end of the process.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*FileIO name=.*test_cli_hostile:pytest.PytestUnraisableExceptionWarning"
)

# Moves the cursor, sets a title, begins lines, turns text around, is no UTF-8, and has no end.
TEXT = "\x1b[2J\x1b]0;title\x07a\r\nengine: 0wned\u202e\x9b1m\udcff\u2028" + "x" * 20_000
DIGITS = "9" * 5_000  # more than int() takes
EACH = (TEXT, DIGITS)
# One of these for each parameter in turn.
IN_TURN = (
    "",
    "\0",
    "nan",
    "-1",
    "1e999",
    "no/such/../place",
    "a=b=c",
    "{}[]*%",
    "٣",
    "engine://[::1",
    "--",
    "\ud800=\udfff",
)
IN_URLS = (TEXT, DIGITS, f"engine://:{SECRET}@127.0.0.1:x\n", f"engine://u:{SECRET}@127.0.0.1:1", "\0", "")

# Verbs that serve are given an address that is refused, so that none of them begins to.
EXPOSED = "0.0.0.0:0"
LOCAL_EXAMPLES = {
    "serve": f"--data DIRECTORY --listen {EXPOSED}",
    "proxy": f"--broker engine://127.0.0.1:1 --listen {EXPOSED}",
    "console": f"--listen {EXPOSED}",
    "tokens create": "ann --file ROLES",
    "tokens list": "--file ROLES",
    "tokens revoke": "ann --file ROLES",
    "inspect": "DIRECTORY",
    "demo": "--flights 0",
    "cluster check": "--metadata NOWHERE --objects NOWHERE",
    "cluster init": "--metadata NOWHERE",
    "cluster status": "--metadata NOWHERE",
    "backup list": "DIRECTORY",
    "backup prune": "DIRECTORY --keep 1",
    "backup verify": "DIRECTORY",
    "restore": "DIRECTORY --data DIRECTORY",
    "config check": "FILE",
    "config schema": "",
}
URLS = {"url", "urls", "brokers", "broker", "proxy", "advertise", "listen", "metadata", "objects", "source"}
COMMON = {"url", "data", "token", "token_file", "tls_ca"}


def command_of(verb: str) -> click.Command:
    found: click.Command = cli
    context = click.Context(cli, info_name="engine")
    for name in verb.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(context, name)
        assert inner is not None
        found, context = inner, click.Context(inner, parent=context, info_name=name)
    return found


@dataclass(frozen=True)
class Attempt:
    """One command line, whose parameter `name` is hostile."""

    verb: str
    name: str
    words: list[str]
    value: str

    def __str__(self) -> str:
        return f"{self.verb}: {self.name} = {self.value[:60]!r}"


def split_words(command: click.Command, words: list[str]) -> tuple[list[str], list[list[str]]]:
    """The positional words of a command line, and its options with their values."""
    takes = {name: not getattr(p, "is_flag", False) for p in command.params for name in (*p.opts, *p.secondary_opts)}
    places, options, rest = list[str](), list[list[str]](), iter(words)
    for word in rest:
        if word in takes and word.startswith("-"):
            options.append([word, next(rest)] if takes[word] else [word])
        else:
            places.append(word)
    return places, options


def attempts_of(verb: str, words: list[str], values: dict[str, tuple[str, ...]]) -> Iterator[Attempt]:
    """`words`: a command line that is right. `values`: those of each parameter, by its name."""
    command = command_of(verb)
    places, options = split_words(command, words)
    at = 0
    for parameter in command.params:
        before, after, flat, given = places[:at], places[at + 1 :], [word for one in options for word in one], ""
        if isinstance(parameter, click.Option):
            given, before, after = parameter.opts[-1], places, []
            flat = [word for option in options if option[0] not in parameter.opts for word in option]
        else:
            at += 1
        for value in values.get(parameter.name or "", ()):
            if not given:
                line = [*flat, "--", *before, value, *after]
            elif given.startswith("--"):
                line = [*flat, f"{given}={value}", "--", *before]
            else:
                line = [*flat, given, value, "--", *before]
            yield Attempt(verb, parameter.name or "", [*verb.split(), *line], value)


def values_of(verb: str, number: int, *, whole: bool) -> dict[str, tuple[str, ...]]:
    """What each parameter of a verb is given. `number`: of the verb; `whole`: everything."""
    found = dict[str, tuple[str, ...]]()
    for at, parameter in enumerate(command_of(verb).params):
        name = parameter.name or ""
        if getattr(parameter, "is_flag", False) or (name in COMMON and verb in EXAMPLES and verb != "topics stats"):
            continue
        turn = IN_TURN if whole or verb == "topics stats" else (IN_TURN[(number + at) % len(IN_TURN)],)
        text = isinstance(parameter.type, click.types.StringParamType) and not whole
        found[name] = tuple(dict.fromkeys((*(EACH[:1] if text else EACH), *turn, *(IN_URLS if name in URLS else ()))))
    return found


def is_plain(text: str) -> bool:
    return not any(unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in text if one not in "\n\t")


def faults_of(attempt: Attempt, code: object, out: str, err: str) -> Iterator[str]:
    """What is wrong with an answer."""
    if code not in (0, 1, 2, 130):
        yield f"it ended with {code!r}"
    if "Traceback" in out + err:
        yield "a traceback is shown"
    if SECRET in out + err:
        yield "a secret is shown"
    if not is_plain(err) or not is_plain(out):
        yield "control characters are shown"
    if code not in (0, 130):
        if not re.search(r"^(engine: |Usage: |Error: )|\b(fail|must|no )", err + out, re.M):
            yield "no error is said"
        if len(err) > SAID_MAX or len(out) > 10 * SAID_MAX:
            yield f"{len(err):,} and {len(out):,} characters are said"
        if re.search(r"(?m)^engine: 0wned", err):
            yield "a value begins a line of its own"


class Answers:
    """Command lines, run in this process: what is wrong with their answers."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.faults: list[str] = []
        self.count = 0

    def of(self, attempt: Attempt) -> None:
        self._capfd.readouterr()
        self.count += 1
        try:
            code = main(attempt.words)
        except BaseException as e:
            self.faults.append(f"{attempt}: {e!r:.300}")
        else:
            out, err = self._capfd.readouterr()
            self.faults += [f"{attempt}: {fault}: {err[:300]!r}" for fault in faults_of(attempt, code, out, err)]


@pytest.fixture(autouse=True)
def terminal(usual: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process are those of a superuser at a terminal, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE_TOKEN", SECRET)
    monkeypatch.setattr(lines, "on_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "in.csv").write_text("key,value\na,b\n")
    (tmp_path / "empty").mkdir()


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Of a broker with roles."""
    roles = tmp_path / "roles"
    roles.write_text(line_of("root", SECRET) + "\n")
    for limit in ("DELAY_S_MIN", "DELAY_S_MAX"):
        monkeypatch.setattr(attempts, limit, 0.001)
    broker = Broker(tmp_path / "broker", config=BrokerConfig(roles_file=str(roles), superusers=("root",)))
    await broker.start()
    await broker.serve_admin("127.0.0.1", 0)
    yield "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    await broker.close()


def sweep(examples: dict[str, str], url: str, answers: Answers, *, whole: bool) -> None:
    places = {"FILE": __file__, "TOKEN": "token", "URL": url, "BACKUPS": "backups", "OUT": "out.csv", "IN": "in.csv"}
    places |= {"DIRECTORY": "empty", "ROLES": "other-roles", "NOWHERE": "etcd://127.0.0.1:1"}
    for number, (verb, arguments) in enumerate(examples.items()):
        words = [places.get(word, word) for word in arguments.split()]
        if url and url not in words:
            words += ["--url", url]
        for attempt in attempts_of(verb, words, values_of(verb, number, whole=whole)):
            answers.of(attempt)
        if url:  # what the next ones need is there
            main([*verb.split(), *words])
    assert not answers.faults, "\n".join(answers.faults)


def test_each_verb_is_swept() -> None:
    assert set(leaves(cli, click.Context(cli, info_name="engine"))) == set(EXAMPLES) | set(LOCAL_EXAMPLES)


@pytest.mark.timeout(600)
async def test_no_value_breaks_a_verb_that_asks_a_broker(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    answers = Answers(capfd)
    await asyncio.to_thread(sweep, EXAMPLES, url, answers, whole=False)
    assert answers.count > 500


@pytest.mark.timeout(600)
def test_no_value_breaks_a_verb_of_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    answers = Answers(capfd)
    sweep(LOCAL_EXAMPLES, "", answers, whole=False)
    assert answers.count > 100


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_every_value_for_every_verb(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    await asyncio.to_thread(sweep, EXAMPLES, url, Answers(capfd), whole=True)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_every_value_for_every_verb_of_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    sweep(LOCAL_EXAMPLES, "", Answers(capfd), whole=True)
