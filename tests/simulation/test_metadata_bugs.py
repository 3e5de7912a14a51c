"""Planted bugs of a store in another process: each is flagged within a few seeds, by the rule that is named for it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import TimeoutError
from engine.metadata import protocol
from engine.metadata.mirror import Mirror
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.remote_session import RemoteSession
from engine.metadata.served_connection import ServedConnection
from engine.metadata.store import OutcomeUnknownError
from tests.simulation.metadata_scenario import TruthError, run

LIVES = 10


def flagged(rule: str, first: int = 100) -> bool:
    """Whether some life shows a violation of the rule. `first`: a seed whose life is short and shows it."""
    for seed in range(first, first + LIVES):
        try:
            run(seed)
        except TruthError as e:
            if str(e).startswith(rule):
                return True
    return False


def test_a_mirror_read_where_the_newest_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteMetadataStore, "newest", property(lambda store: store.mirror))
    assert flagged("newest:")


def test_a_lease_believed_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted from when the answer is seen, which a stopped process sees late."""

    async def refresh(session: RemoteSession) -> None:
        await session._store.refresh_session(session)
        session.deadline = session._store._clock.monotonic() + session.timeout

    monkeypatch.setattr(RemoteSession, "refresh", refresh)
    assert flagged("session:", first=104)


def test_a_watch_event_lost_over_a_reconnection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that is resumed begins at the present."""
    begin = ServedConnection._begin_watch

    def at_present(connection: ServedConnection, request: Any) -> None:
        if isinstance(request, protocol.Watch) and request.from_version is not None:
            request = protocol.Watch(request.watch, request.prefix, connection._store.version)
        begin(connection, request)

    monkeypatch.setattr(ServedConnection, "_begin_watch", at_present)
    assert flagged("watch:")


def test_a_mirror_that_is_believed_over_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mirror, "clear", lambda mirror: None)
    assert flagged("mirror:")


def test_a_write_in_flight_that_is_called_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = RemoteMetadataStore._fail

    def not_done(store: RemoteMetadataStore, call: Any, error: Exception) -> None:
        lost = isinstance(error, OutcomeUnknownError)
        fail(store, call, TimeoutError(str(error)) if lost else error)

    monkeypatch.setattr(RemoteMetadataStore, "_fail", not_done)
    assert flagged("not done:")
