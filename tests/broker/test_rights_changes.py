"""When rights of roles have changed: what a broker remembers of it, and what it takes for changed."""

from __future__ import annotations

from engine.broker.rights.changes import SKEW_MS, Changes


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000

    def time_ms(self) -> int:
        return self.now


def test_what_was_before_a_change_or_the_brokers_start_may_have_changed() -> None:
    time = Time()
    found = Changes(time)  # type: ignore[arg-type]
    for role in ("ann", "bob"):
        found.began(role)
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


def test_a_role_that_was_not_followed_since_then_may_have_changed() -> None:
    time = Time()
    found = Changes(time)  # type: ignore[arg-type]
    time.now += 100 * SKEW_MS
    begun = time.now
    assert found.since("ann", begun)
    found.note("ann")
    assert found.since("ann", begun + 100 * SKEW_MS), "it is not followed"
    found.began("ann")
    assert found.since("ann", begun)
    assert not found.since("ann", begun + SKEW_MS + 1)
    time.now += 10 * SKEW_MS
    found.ended("ann")
    assert found.since("ann", time.now + SKEW_MS + 1)
    found.began("ann")
    assert found.since("ann", begun + SKEW_MS + 1), "it was not followed in between"
    assert not found.since("ann", time.now + SKEW_MS + 1)


def test_nothing_is_kept_of_roles_that_are_not_followed() -> None:
    found = Changes(Time())  # type: ignore[arg-type]
    for number in range(1_000):
        found.note(f"role-{number}")
        found.began("ann")
        found.ended("ann")
    assert not found._of_role
