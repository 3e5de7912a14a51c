"""Which messages run() may give to its handler, and up to where it may acknowledge: tables of what happens."""

from __future__ import annotations

import random

import pytest

from engine.client.consume.run_schedule import Job, JobState, Prefix, Schedule

# What happens, and which jobs are begun by it. "a1" is the job 1 of the key "a", "-1" one without a key, "ab1" of both.
#   +a1  received     =a1  finished     ~a1@5  failed, to be tried again at 5     @5  the time is 5
TABLES = {
    "one after the other": (1, [("+a1", "a1"), ("+b2", ""), ("+c3", ""), ("=a1", "b2"), ("=b2", "c3")]),
    "different keys side by side": (3, [("+a1", "a1"), ("+b2", "b2"), ("+c3", "c3"), ("+d4", ""), ("=b2", "d4")]),
    "one key in order": (3, [("+a1", "a1"), ("+a2", ""), ("+b3", "b3"), ("+a4", ""), ("=a1", "a2"), ("=a2", "a4")]),
    "without a key nothing waits": (3, [("+-1", "-1"), ("+-2", "-2"), ("+-3", "-3")]),
    "a slot goes to what was received first": (
        1,
        [("+a1", "a1"), ("+a2", ""), ("+b3", ""), ("=a1", "a2"), ("=a2", "b3")],
    ),
    "a failed one keeps its key, and others go on": (
        1,
        [("+a1", "a1"), ("+a2", ""), ("+b3", ""), ("~a1@5", "b3"), ("=b3", ""), ("@4", ""), ("@5", "a1")],
    ),
    "a failed one that is due is first, and takes no slot from what runs": (
        1,
        [("+a1", "a1"), ("+b2", ""), ("~a1@5", "b2"), ("+c3", ""), ("@6", ""), ("=b2", "a1"), ("=a1", "c3")],
    ),
    "failed ones are due in their order": (
        2,
        [("+a1", "a1"), ("+b2", "b2"), ("~a1@9", ""), ("~b2@5", ""), ("@7", "b2"), ("~b2@10", ""), ("@20", "a1 b2")],
    ),
    "a batch waits for all its keys": (
        3,
        [("+a1", "a1"), ("+b2", "b2"), ("+ab3", ""), ("+b4", ""), ("=a1", ""), ("=b2", "ab3"), ("=ab3", "b4")],
    ),
    "what is behind a batch waits in each of its keys": (
        4,
        [("+ab1", "ab1"), ("+a2", ""), ("+bc3", ""), ("+c4", ""), ("=ab1", "a2 bc3"), ("=bc3", "c4")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_what_runs_follows_the_table(name: str):
    concurrency, rows = TABLES[name]
    schedule, jobs, now = Schedule(concurrency), dict[str, Job](), 0.0
    for event, expected in rows:
        what = event[1:].split("@")[0]
        if event[0] == "+":
            jobs[what] = Job(what, [key for key in what if key.isalpha()])
            schedule.add(jobs[what])
        elif event[0] == "=":
            schedule.finish(jobs[what])
        elif event[0] == "~":
            schedule.hold(jobs[what], float(event.split("@")[1]))
        else:
            now = float(event[1:])
            schedule.release(now)
        begun = []
        while (job := schedule.next()) is not None:
            begun.append(job.item)
        assert " ".join(begun) == expected, event


def test_release_says_when_the_next_one_is_due():
    schedule = Schedule(3)
    jobs = [Job(n, [n]) for n in range(3)]
    for job in jobs:
        schedule.add(job)
        assert schedule.next() is job
    for job, due in zip(jobs, (7.0, 5.0, 9.0), strict=True):
        schedule.hold(job, due)
    assert schedule.release(4.0) == 5.0
    assert schedule.release(7.0) == 9.0
    assert schedule.release(9.0) is None
    assert [schedule.next() for _ in range(3)] == jobs
    assert [job.attempts for job in jobs] == [2, 2, 2]


def test_what_has_not_begun_is_known_in_its_order():
    schedule = Schedule(2)
    a, held, behind, b, free = (Job(n, k) for n, k in enumerate(("a", "h", "h", "b", "")))
    for job in (a, held):
        schedule.add(job)
        schedule.next()
    schedule.hold(held, 5.0)
    for job in (behind, b, free):
        schedule.add(job)
    assert schedule.next() is b
    assert schedule.not_begun() == [behind, free]
    assert schedule.unfinished == 5


def test_a_job_moves_only_as_its_table_says():
    job = Job("x")
    for wrong in (JobState.WAITING, JobState.RUNNING, JobState.HELD, JobState.FINISHED):
        with pytest.raises(ValueError, match="cannot go from WAITING"):
            job.move_to(wrong)


# Which of the deliveries 1, 2, 3 … are finished, in which order, and up to where all are then.
PREFIXES = [
    ("123", [1, 2, 3]),
    ("321", [None, None, 3]),
    ("213", [None, 2, 3]),
    ("2431", [None, None, None, 4]),
    ("1342", [1, None, None, 4]),
]


@pytest.mark.parametrize(("order", "expected"), PREFIXES)
def test_the_prefix_ends_before_the_first_unfinished_one(order: str, expected: list[int | None]):
    prefix, schedule, jobs = Prefix(), Schedule(9), dict[int, Job]()
    for n in range(1, len(order) + 1):
        jobs[n] = Job(n, size=10)
        assert prefix.add(("t", n), jobs[n])
        schedule.add(jobs[n])
        schedule.next()
    found = []
    for n in order:
        schedule.finish(jobs[int(n)])
        found.append(prefix.advance())
    assert found == expected
    assert (len(prefix), prefix.size) == (0, 0)


def test_what_is_delivered_again_joins_its_first_delivery_while_that_is_not_covered():
    prefix, schedule = Prefix(), Schedule(9)
    first, second = Job("first 1"), Job("first 2")
    for place, job in ((1, first), (2, second)):
        assert prefix.add(place, job)
        schedule.add(job)
        schedule.next()
    schedule.finish(second)
    assert prefix.advance() is None, "the first is not finished"
    # the connection is lost, and both come again, with a third
    assert not prefix.add(1, Job("again 1"))
    assert not prefix.add(2, Job("again 2"))
    third = Job("first 3")
    assert prefix.add(3, third)
    schedule.finish(first)
    assert prefix.advance() == "again 2", "the id of the newest delivery"
    assert prefix.add(1, Job("anew")), "covered: a later delivery is another reading, after a seek"
    assert len(prefix) == 2


def test_any_order_of_events_keeps_keys_in_order_and_the_prefix_whole():
    """A plain model beside it: of each key the order of receipt, and no two at once."""
    for seed in range(40):
        rng = random.Random(seed)
        schedule, prefix = Schedule(rng.randint(1, 5)), Prefix()
        running: list[Job] = []
        finished: list[int] = []
        received, covered, now, due = 0, 0, 0.0, None
        while len(finished) < 60:
            step = rng.random()
            if step < 0.5 and received < 60:
                received += 1
                job = Job(received, rng.sample("abc", rng.randint(0, 2)))
                assert prefix.add(received, job)
                schedule.add(job)
            elif running:
                job = running.pop(rng.randrange(len(running)))
                if step < 0.7:
                    schedule.hold(job, now + rng.random())
                else:
                    schedule.finish(job)
                    finished.append(job.item)
                    for key in job.keys:
                        same = [n for n in finished if key in jobs_keys(seed)[n]]
                        assert same == sorted(same)
                    covered = prefix.advance() or covered
                    assert set(range(1, covered + 1)) <= set(finished)
                    assert covered + 1 not in finished
            now += rng.random()
            due = schedule.release(now)
            assert due is None or due > now
            while (begun := schedule.next()) is not None:
                assert not any(begun.keys & other.keys for other in running)
                running.append(begun)
                jobs_keys(seed)[begun.item] = begun.keys
        assert covered == 60


_KEYS: dict[int, dict[int, frozenset[object]]] = {}


def jobs_keys(seed: int) -> dict[int, frozenset[object]]:
    return _KEYS.setdefault(seed, {})
