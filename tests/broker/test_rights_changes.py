"""When rights of roles have changed: what a broker remembers of it, and what it takes for changed."""

from __future__ import annotations

from engine.broker.rights import changes
from engine.broker.rights.changes import SKEW_MS, Changes


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000

    def time_ms(self) -> int:
        return self.now


def test_what_was_before_a_change_or_the_brokers_start_may_have_changed() -> None:
    time = Time()
    found = Changes(time)  # type: ignore[arg-type]
    assert found.since("ann", time.now - 1)
    begun = time.now = time.now + SKEW_MS + 1
    assert not found.since("ann", begun)
    time.now += 1
    found.note("ann")
    assert found.since("ann", begun)
    assert not found.since("bob", begun)
    later = time.now + SKEW_MS + 1
    assert not found.since("ann", later)
    time.now = later
    found.note()
    assert found.since("bob", begun)


def test_of_too_many_roles_the_oldest_are_forgotten_and_count_as_changed(monkeypatch) -> None:
    monkeypatch.setattr(changes, "_ROLES_MAX", 2)
    time = Time()
    found = Changes(time)  # type: ignore[arg-type]
    for role in ("a", "b", "c"):
        time.now += 100 * SKEW_MS
        found.note(role)
    begun = time.now - 200 * SKEW_MS
    assert found.since("a", begun)
    assert found.since("d", begun), "it may be one that was forgotten"
    assert not found.since("d", begun + SKEW_MS + 1)
