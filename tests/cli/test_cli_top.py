"""`engine top`: what it shows, at a terminal and to programs, of brokers that answer, are slow, or have gone away."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from engine.cli.top_view import SORTS, rendered, view_of
from engine.client.admin.exposition import Metrics, quantile
from engine.errors import UnsupportedError
from engine.sync import Client
from tests.cli.cli_server import Server, start_server, stop_server
from tests.kit.programs import prepared

Run = Callable[..., Any]
PATIENCE_S = 60.0
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def exposition(**samples: float | Mapping[str, float]) -> str:
    """Lines of `engine_…`; a mapping gives the value for each text of labels."""
    lines = ["# HELP engine_x not a sample"]
    for name, value in samples.items():
        found = value if isinstance(value, Mapping) else {"": value}
        lines += [f"engine_{name}{labels} {count}" for labels, count in found.items()]
    return "\n".join(lines) + "\n"


def segment(topic: str, ident: int) -> str:
    return f'{{topic="{topic}",segment="{ident}"}}'


TWO_TOPICS = exposition(
    broker_info={'{broker="engine://a:1",cluster="c"}': 1},
    broker_ready=1,
    connections=3,
    storage_size={segment("quiet", 0): 10, segment("busy", 1): 2_048, segment("busy", 2): 0},
    rate_in={segment("busy", 1): 500.0, segment("busy", 2): 70.5},
    segment_sealed={segment("busy", 2): 1},
    subscription_back_log={'{topic="quiet",segment="0",subscription="s"}': 99},
    scalable_topic_change_pending={'{topic="busy"}': 1},
    memory_pool_used_bytes={'{pool="publish"}': 90},
    memory_pool_limit_bytes={'{pool="publish"}': 100},
    pool_queue_size={'{pool="publish"}': 4},
    event_loop_lag_seconds_bucket={'{le="0.1"}': 98, '{le="1"}': 99, '{le="+Inf"}': 100},
)


def shown(text: str, rows: int = 100, note: str = "", segments: bool = False) -> str:
    console = Console(width=150, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - recorded, not written
    with console.file:
        console.print(rendered(view_of(Metrics(text)), note, rows, segments))
        return console.export_text()


# -- reading ---------------------------------------------------------------------------------------------------------


def test_it_reads_what_another_parser_reads(server: Server):
    with Client(server.url) as client:
        client.admin.create_topic('or"d\\ers')
        with client.producer('or"d\\ers') as producer:
            producer.send(b"x")
        text = client.admin.get_metrics()
    ours = Metrics(text)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    theirs = {name.removeprefix("engine_") for name in {s.name for s in samples} if name.startswith("engine_")}
    assert {name.removeprefix("engine_") for name in ours if name.startswith("engine_")} == theirs
    for name in theirs:
        expected = [(s.labels, s.value) for s in samples if s.name == f"engine_{name}"]
        assert [(dict(labels), value) for labels, value in ours.of(name)] == expected, name


@pytest.mark.parametrize(
    ("part", "before", "found"),
    [(0.5, {}, 0.1), (0.99, {}, 1.0), (1.0, {}, inf), (0.5, {0.1: 98, 1.0: 99, inf: 99}, inf), (0.5, None, None)],
)
def test_a_quantile_is_of_what_came_in_between(part, before, found):
    now = {0.1: 98.0, 1.0: 99.0, inf: 100.0}
    assert quantile(part, now, now if before is None else before) == found


def test_what_is_not_served_is_nothing():
    view = view_of(Metrics(""))
    assert (view.topics, view.pools, view.ready, view.broker) == ([], [], False, "")
    assert "not ready" in shown("")


# -- showing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sort", "first"), [("in", "busy"), ("stored", "busy"), ("backlog", "quiet"), ("name", "busy")]
)
def test_topics_are_sums_of_their_segments_in_the_order_asked_for(sort, first):
    view = view_of(Metrics(TWO_TOPICS), sort=sort)
    assert view.topics[0].topic == first
    (busy,) = [t for t in view.topics if t.topic == "busy"]
    assert (busy.segments, busy.sealed, busy.msg_rate_in, busy.stored, busy.changing) == (2, 1, 570.5, 2_048, True)
    assert sort in SORTS


def test_everything_is_on_the_page():
    page = shown(TWO_TOPICS, segments=True)
    for text in ("engine://a:1", "ready", "3 connections", "busy (changing)", "1 + 1 sealed", "570.5", "2.0 KiB"):
        assert text in page, text
    assert re.search(r"publish +90 B +100 B +4", page)
    assert re.search(r"event loop lag +100 ms +1 s", page)
    assert re.search(r"busy +2 sealed +70\.5", page)


def test_segments_that_are_not_listed_are_one_line_for_each_namespace():
    rest = '{namespace="public/big",topic="",segment=""}'
    text = exposition(
        storage_size={segment("busy", 1): 10, rest: 4_096},
        subscription_back_log={'{namespace="public/big",topic="",segment="",subscription=""}': 77},
        segments_unlisted={'{namespace="public/big"}': 1_234},
        topics_unmeasured=5,
    )
    view = view_of(Metrics(text))
    assert [row.topic for row in view.topics] == ["busy", "others of public/big"]
    assert (view.topics[1].segments, view.topics[1].stored, view.topics[1].backlog) == (1_234, 4_096, 77)
    assert [row.topic for row in view.segments] == ["busy"]
    page = shown(text)
    assert re.search(r"others of public/big +1234 .* 77 +4\.0 KiB", page)
    assert "5 topics to be measured" in page


def test_a_proxy_is_no_broker():
    """It would be one that is not ready, and has nothing."""
    with pytest.raises(UnsupportedError, match="the broker's own --url"):
        view_of(Metrics(exposition(proxy_connections=1)))


def test_what_has_no_room_is_counted():
    assert "… and 1 more" in shown(TWO_TOPICS, rows=1)


def test_json_is_json_whatever_is_in_it():
    before = exposition(event_loop_lag_seconds_bucket={'{le="0.1"}': 98, '{le="1"}': 99, '{le="+Inf"}': 99})
    view = view_of(Metrics(TWO_TOPICS), Metrics(before))
    assert json.loads(json.dumps(view.to_json(), allow_nan=False))["times"]["event loop lag"] == ["inf", "inf"]


# -- the command -----------------------------------------------------------------------------------------------------


def test_once_for_people_and_for_programs(server: Server, engine: Run):
    with Client(server.url) as client, client.producer("orders") as producer:
        producer.send(b"x")
    page = engine("top", "--once", "--segments", "--url", server.url)
    assert page.code == 0
    assert "topic://public/default/orders" in page.out
    (line,) = engine("top", "--once", "--json", "--url", server.url).out.splitlines()
    found = json.loads(line)
    assert found["ready"] is True
    assert [t["topic"] for t in found["topics"]] == ["topic://public/default/orders"]
    assert found["times"]["publish to durable"][0] is not None
    assert {pool["pool"] for pool in found["pools"]} >= {"publish", "topic_list_heap", "connections"}


def test_once_without_a_broker_is_an_error_of_one_line(engine: Run):
    result = engine("top", "--once", "--url", "engine://127.0.0.1:1")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1


def test_of_a_directory_that_no_server_has_open(tmp_path, engine: Run):
    engine("topics", "create", "orders", "--data", tmp_path / "data")
    assert json.loads(engine("top", "--once", "--json", "--data", tmp_path / "data").out)["ready"] is True


class Terminal:
    """`engine top` under a pseudo terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._descriptor = descriptor
        self._seen = b""

    def until(self, pattern: str) -> str:
        """Read until the screen has shown it; what was shown since the last time."""
        deadline = time.monotonic() + PATIENCE_S
        while not (match := re.search(pattern.encode(), self._seen)):
            assert time.monotonic() < deadline, self._seen[-2_000:]
            if select.select([self._descriptor], [], [], 1.0)[0]:
                self._seen += _CONTROL.sub(b"", os.read(self._descriptor, 65_536))
        shown, self._seen = self._seen[: match.end()], self._seen[match.end() :]
        return shown.decode()

    def end(self, key: bytes = b"\x03") -> int:
        """Press Ctrl-C, or another key; the exit code."""
        os.write(self._descriptor, key)
        return self.ended()

    def ended(self) -> int:
        """The exit code of a command that ends by itself."""
        while self.process.poll() is None:  # it may not end before its last words are read
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    os.read(self._descriptor, 65_536)
                except OSError:  # the other end is closed
                    break
        return self.process.wait(timeout=PATIENCE_S)


TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"


@contextmanager
def terminal(
    *arguments: str, program: tuple[str, ...] = ("-m", "engine"), first: str = TAKE_TERMINAL
) -> Iterator[Terminal]:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    command = [sys.executable, *program, "top", "--interval", "0.2", *arguments]
    process = subprocess.Popen(
        prepared(first, command), stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(mine, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(mine)


def test_live_at_a_terminal_until_q_or_ctrl_c(server: Server):
    with Client(server.url) as client, client.producer("orders") as producer:
        with terminal("--url", server.url) as screen:
            screen.until("ready")
            producer.send(b"x")
            screen.until("orders +1 ")
            assert screen.end(b"q") == 0
        with terminal("--url", server.url) as screen:
            screen.until("orders +1 ")
            assert screen.end(b"\x03") == 130


def test_a_terminal_without_a_keyboard_gets_one_look_after_another_until_it_is_interrupted(server: Server):
    nothing = f"{TAKE_TERMINAL}; import os; os.dup2(os.open(os.devnull, os.O_RDONLY), 0)"
    with terminal("--url", server.url, first=nothing) as screen:
        screen.until("ready")
        screen.until("ready")
        assert screen.end() == 130


WITHOUT_TEXTUAL = (
    "-c",
    "import sys; sys.modules['textual'] = None; from engine.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


def test_without_textual_a_terminal_says_what_to_install_and_a_pipe_gets_looks(server: Server):
    with terminal("--url", server.url, program=WITHOUT_TEXTUAL) as screen:
        screen.until(r"pip install 'engine\[top\]'; engine top --once prints one look without it")
        assert screen.ended() == 1
    for options in (["--once"], ["--once", "--json"]):
        command = [sys.executable, *WITHOUT_TEXTUAL, "top", *options, "--url", server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "ready" in done.stdout
    command = [sys.executable, *WITHOUT_TEXTUAL, "top", "--json", "--interval", "0.1", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["ready"] for _ in range(2)] == [True, True]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


# A lost broker is looked for until an operation's timeout; that of a user is longer.
SOON_TIMED_OUT = (
    "-c",
    "import sys; from engine.cli import connection, main; options = connection.client_options; "
    "connection.client_options = lambda url: {**options(url), 'operation_timeout': 10.0}; "
    "sys.exit(main.main(sys.argv[1:]))",
)


def test_a_broker_that_stops_answering_is_said_to_and_one_that_dies_too(tmp_path):
    server = start_server(tmp_path / "data")
    try:
        with Client(server.url) as client, client.producer("orders") as producer:
            producer.send(b"x")
        with terminal("--url", server.url, program=SOON_TIMED_OUT) as screen:
            screen.until("orders")
            os.kill(server.process.pid, signal.SIGSTOP)
            screen.until(r"no answer for \d+ s: the broker is slow")
            screen.until("orders")  # what was seen last stays
            os.kill(server.process.pid, signal.SIGCONT)
            server.process.kill()
            screen.until(r"no answer for \d+ s: (?!the broker is slow)")
            screen.until("orders")
            assert screen.end() == 130
    finally:
        server.process.kill()
        stop_server(server)


def test_it_waits_for_a_broker_that_is_not_there_yet(tmp_path):
    with terminal("--url", "engine://127.0.0.1:1") as screen:
        screen.until(r"no answer for \d+ s: .*connect")
        assert screen.end() == 130
