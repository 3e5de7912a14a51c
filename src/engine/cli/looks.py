"""`Looks`: polls one broker's admin API on a thread of its own, so that no screen waits for a slow or lost broker.

A look is one request for the metrics, however many topics there are, and one more for the topic or segment that a
screen has opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.cli.top_view import View, view_of
from engine.client.admin.exposition import Metrics
from engine.errors import EngineError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from engine.sync import Client

LATE_S = 3.0  # beyond the interval: then the broker is shown as not answering


@dataclass(frozen=True, slots=True)
class Asked:
    """What a screen has opened: a topic, or one of its segments by its whole name."""

    topic: str
    segment: str | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """The admin API's answer about what was asked for; `fault`: why there is none."""

    asked: Asked
    answer: dict[str, Any]
    fault: str = ""


class Looks:
    """`connect` makes a blocking client; `interval`: seconds between two looks; `notify` is called after each look.

    `view` and `detail` are replaced as a whole, and read by any thread. `requests` counts those to the admin API.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        interval: float,
        sort: str = "in",
        notify: Callable[[], object] = lambda: None,
    ) -> None:
        self.view: View | None = None
        self.detail: Detail | None = None
        self.requests = 0
        self.notify = notify
        self.changed = threading.Event()  # set after each look, and after each that failed
        self._connect = connect
        self._interval = interval
        self._sort = sort
        self._asked: Asked | None = None
        self._metrics: Metrics | None = None
        self._seen_at = time.monotonic()
        self._fault = ""
        self._client: Client | None = None
        self._stopped = False
        self._woken = threading.Event()  # a look is due at once, or none any more
        self._thread = threading.Thread(target=self._run, name="engine-top", daemon=True)

    def __enter__(self) -> Looks:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self._woken.set()
        if (client := self._client) is not None:
            client.close()
        self._thread.join()

    @property
    def note(self) -> str:
        """The failure and its duration; "": none."""
        silent = time.monotonic() - self._seen_at
        if not self._fault and silent < self._interval + LATE_S:
            return ""
        return f"no answer for {silent:.0f} s: {self._fault or 'the broker is slow'}"

    def ask(self, asked: Asked | None) -> None:
        """From now on each look has this detail, or none; the next look begins at once."""
        self._asked = asked
        self._woken.set()

    def once(self) -> None:
        """One look, by the caller. Raises what the broker or the connection to it does."""
        with self._connect() as client:
            self._look(client)

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._follow()
            except (EngineError, OSError) as e:
                self._fault = " ".join(str(e).split()) or type(e).__name__
                self._tell()
            self._wait()

    def _follow(self) -> None:
        """Use one client until it fails: after that, another broker may answer."""
        with self._connect() as self._client:
            while not self._stopped:
                self._look(self._client)
                self._tell()
                self._wait()

    def _wait(self) -> None:
        self._woken.wait(self._interval)
        if not self._stopped:
            self._woken.clear()

    def _tell(self) -> None:
        self.changed.set()
        self.notify()

    def _look(self, client: Client) -> None:
        asked = self._asked
        self.requests += 1
        before, self._metrics = self._metrics, Metrics(client.admin.get_metrics())
        view = view_of(self._metrics, before, self._sort)
        detail = None if asked is None else self._open(client, asked)
        self.view, self.detail = view, detail
        self._seen_at, self._fault = time.monotonic(), ""

    def _open(self, client: Client, asked: Asked) -> Detail:
        self.requests += 1
        try:
            if asked.segment is not None:
                return Detail(asked, client.admin.get_segment_stats(asked.segment))
            return Detail(asked, dict(client.admin.get_stats(asked.topic)))
        except (NotFoundError, InvalidArgumentError) as e:  # deleted, or its layout has changed since
            return Detail(asked, {}, str(e))
