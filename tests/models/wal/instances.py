"""The instances that are explored: for each rule one that shows the fault without it, and those that must be clean."""

from __future__ import annotations

from tests.models.wal.state import Budget, Instance, Rule

# The rule that is off -> the smallest instance known in which its absence does harm, and what is found there.
FAULTS: dict[Rule, tuple[Instance, str]] = {
    Rule.R1_LIST: (Instance(writes=(1, 0, 0), budget=Budget(takeovers=2)), "LOST"),
    Rule.R2_REFERENCE: (Instance(writes=(1, 1, 0), budget=Budget(takeovers=2)), "LOST"),
    Rule.R3_ALL_OPEN: (Instance(writes=(1, 0, 0), budget=Budget(takeovers=2)), "LOST"),
    Rule.R4_FIRST_HOLE: (Instance(writes=(2, 0, 0)), "LOST"),
    Rule.R4_ADOPT: (Instance(writes=(2, 0, 0), budget=Budget(losses=1, takeovers=2)), "INVENTED"),
    Rule.R4_READ_BACK: (Instance(writes=(1, 0, 0)), "BEHIND THE FENCE"),
    Rule.R5_VERSION: (Instance(writes=(2, 0, 0), trims=True, budget=Budget(uploads=1)), "BEHIND THE FENCE"),
    Rule.R6_KEPT: (Instance(writes=(2, 0, 0), budget=Budget(uploads=1, sweeps=1)), "LOST"),
    Rule.R7_READ_BACK: (Instance(writes=(1, 0, 0), budget=Budget(resends=1, losses=1)), "LOST"),
    Rule.R7_PREFIX: (Instance(writes=(2, 0, 0)), "LOST"),
    Rule.R7_DELIVERY: (Instance(writes=(1, 0, 0)), "LOST"),
    Rule.R8_GIVE_UP: (
        Instance(writes=(1, 0, 0), claimers="AB", budget=Budget(losses=1, takeovers=2)),
        "STUCK",
    ),
    Rule.R9_STORED: (Instance(writes=(2, 0, 0), budget=Budget(handovers=1)), "LOST"),
    Rule.R10_OWN: (Instance(writes=(2, 0, 0), claimers="AB", budget=Budget(takeovers=2)), "LOST"),
    Rule.R11_OBJECTS: (Instance(writes=(2, 1, 0), claimers="AB", budget=Budget(handovers=1, takeovers=2)), "LOST"),
    Rule.R12_RECORD: (Instance(writes=(1, 1, 0), budget=Budget(uploads=1, sweeps=1, takeovers=2)), "LOST"),
    Rule.R12_GONE: (Instance(writes=(1, 1, 0), budget=Budget(uploads=1, sweeps=1, takeovers=2)), "LOST"),
    Rule.R13_NAME: (Instance(writes=(2, 0, 0), window=1, claimers="B", budget=Budget(uploads=2)), "LOST"),
    Rule.R14_OWNER: (Instance(writes=(1, 1, 0), budget=Budget(handovers=1, uploads=1, takeovers=2)), "LOST"),
    Rule.R14_TERM: (
        Instance(writes=(2, 0, 0), claimers="A", budget=Budget(handovers=2, takeovers=2, uploads=1)),
        "INVENTED",
    ),
    Rule.R14_SESSION: (Instance(segments=2, writes=(1, 0, 0), budget=Budget(uploads=1, sweeps=1, takeovers=2)), "LOST"),
    Rule.R14_COVERED: (Instance(writes=(2, 0, 0), window=1, rolls=True, budget=Budget(uploads=1)), "LOST"),
    Rule.R15_INDEX: (Instance(writes=(1, 1, 0), trims=True, budget=Budget(handovers=1, takeovers=2)), "LOST"),
    Rule.R15_NAMED: (Instance(writes=(1, 0, 0), trims=True, budget=Budget(uploads=1)), "LOST"),
    Rule.R15_OWN: (Instance(writes=(1, 0, 0), trims=True, budget=Budget(uploads=1)), "FENCE MOVED"),
    Rule.R16_ORDER: (Instance(writes=(1, 0, 0), budget=Budget(uploads=1, sweeps=1, takeovers=1)), "LOST"),
    Rule.R18_KEPT: (
        Instance(segments=2, writes=(1, 0, 0), shares=True, budget=Budget(uploads=1, retentions=1)),
        "LOST",
    ),
    Rule.R18_SETTLED: (Instance(segments=2, writes=(1, 0, 0), shares=True, budget=Budget(uploads=1, sweeps=1)), "LOST"),
    Rule.R18_ORDER: (Instance(segments=2, writes=(1, 0, 0), shares=True, budget=Budget(uploads=1, sweeps=1)), "LOST"),
    Rule.R18_BOUND: (Instance(segments=2, writes=(1, 0, 0), shares=True, budget=Budget(uploads=1, sweeps=1)), "LOST"),
    Rule.R19_NAMED: (Instance(writes=(1, 0, 0), budget=Budget(moves=1)), "LOST"),
    Rule.R19_OWNER: (Instance(writes=(1, 0, 0), budget=Budget(handovers=1, moves=1)), "LOST"),
}

_ALL = Budget(resends=1, losses=1, uploads=1, sweeps=1)

# Every rule is on: no state may be at fault. LONG are those of the long form.
CLEAN: dict[str, Instance] = {
    "a fence against PUTs in flight": Instance(writes=(3, 1, 0), window=2),
    "two successors, a lost answer": Instance(writes=(2, 0, 0), window=1, budget=Budget(losses=1, takeovers=2)),
    "a handover, an upload, a trim": Instance(writes=(1, 1, 0), trims=True, budget=Budget(handovers=1, uploads=1)),
    "a file that ends before the log, a trim": Instance(
        writes=(2, 0, 0), window=1, trims=True, rolls=True, budget=Budget(uploads=1)
    ),
    "two segments, a sweep": Instance(segments=2, writes=(1, 0, 0), budget=Budget(uploads=1, sweeps=1)),
    "a silent segment's reference moves on, the segment is handed over, perhaps back": Instance(
        writes=(1, 1, 0), trims=True, claimers="AB", budget=Budget(handovers=1, takeovers=1, uploads=1, moves=1)
    ),
    "a closed segment is opened, so that the log of an ended session goes": Instance(
        writes=(1, 0, 0), claimers="B", budget=Budget(handovers=1, uploads=1, moves=1, sweeps=1)
    ),
    "two segments share an object, retention, a sweep": Instance(
        segments=2, writes=(1, 0, 0), shares=True, budget=Budget(uploads=1, retentions=2, sweeps=1)
    ),
}
LONG: dict[str, Instance] = {
    "a closed segment is opened for its log by two, writes go on, a sweep": Instance(
        writes=(1, 1, 0), claimers="BC", budget=Budget(handovers=1, takeovers=2, uploads=1, moves=1, sweeps=1)
    ),
    "a reference moves on, writes go on, a takeover": Instance(
        writes=(2, 1, 0), trims=True, budget=Budget(uploads=1, moves=1)
    ),
    "references move on, two takeovers, a sweep": Instance(
        writes=(2, 1, 0), window=1, trims=True, budget=Budget(takeovers=2, uploads=1, moves=2, sweeps=1)
    ),
    "two segments, references move on, a handover, a sweep": Instance(
        segments=2, writes=(1, 1, 0), window=1, trims=True, budget=Budget(handovers=1, uploads=1, moves=2, sweeps=1)
    ),
    "lost answers, late copies, upload, trim, sweep": Instance(writes=(3, 0, 0), trims=True, budget=_ALL),
    "the same with two successors": Instance(
        writes=(2, 0, 0), trims=True, budget=Budget(losses=1, takeovers=2, uploads=1, sweeps=1)
    ),
    "two segments, two successors, writes go on": Instance(
        segments=2, writes=(3, 1, 1), window=3, budget=Budget(takeovers=2)
    ),
    "two segments, handover, fence, upload, trim, sweep": Instance(
        segments=2, writes=(2, 1, 0), trims=True, budget=Budget(handovers=1, uploads=1, sweeps=1)
    ),
    "moves in order and by force, upload, trim": Instance(
        writes=(2, 1, 0), trims=True, claimers="ABC", budget=Budget(handovers=2, takeovers=2, uploads=1)
    ),
    "moves in order back to the same session": Instance(
        writes=(2, 1, 0), trims=True, claimers="AB", budget=Budget(handovers=2, takeovers=2, uploads=2)
    ),
    "files of former owners, and of parts of the log": Instance(
        writes=(2, 1, 0), window=1, trims=True, rolls=True, budget=Budget(takeovers=2, uploads=2)
    ),
    "files of parts, handed over and back": Instance(
        writes=(2, 1, 0),
        window=1,
        trims=True,
        rolls=True,
        claimers="AB",
        budget=Budget(handovers=2, takeovers=2, uploads=2),
    ),
    "a shared object, a takeover, retention, a sweep": Instance(
        segments=2, writes=(1, 0, 0), window=1, shares=True, budget=Budget(uploads=1, retentions=1, sweeps=1)
    ),
    "two shared objects, trims, a sweep": Instance(
        segments=2,
        writes=(2, 0, 0),
        window=1,
        shares=True,
        trims=True,
        budget=Budget(takeovers=0, uploads=2, retentions=1, sweeps=1),
    ),
    "a shared object of a segment that is handed over": Instance(
        segments=2, writes=(1, 1, 0), window=1, shares=True, budget=Budget(handovers=1, uploads=1, sweeps=1)
    ),
    "three moves among three sessions": Instance(
        writes=(2, 1, 0), claimers="ABC", budget=Budget(handovers=2, takeovers=3)
    ),
    "a session whose PUT is lost claims what it had": Instance(
        writes=(2, 1, 0), claimers="AB", budget=Budget(losses=1, takeovers=2)
    ),
}
