"""What a backup has to show: a history as it was at the moment of the backup, by the clock that both go by."""

from __future__ import annotations

from engine.testing.history import Fact, History

# What a client asks for, and may have got although the answer came behind the moment.
ASKED = ("send", "ack", "ack_one", "txn_end")


def past(live: History, taken_ms: int) -> History:
    """The history for a restored copy. `live`: its times are those of the wall clock, in seconds. `taken_ms`: when the
    backup was taken, rounded down.

    Answers from before the moment count: what they promise has to be in the copy. Those that came later count as
    unknown, but for refusals. What was asked for behind the moment is not in the copy.
    """
    copy = History(live._now)
    asked: set[int] = set()
    attached: dict[int, str] = {}
    for event in live.events:
        if not _is_known(event, asked, live.events, taken_ms):
            continue
        copy.events.append({**event, "n": len(copy.events)})
        if event["phase"] == "invoke":
            asked.add(event["call"])
        if event["what"] == "attach" and event["phase"] == "invoke":
            attached[event["call"]] = event["client"]
        elif event["what"] == "detach":
            attached.pop(event["attachment"], None)
    copy._calls = live._calls
    for call, client in attached.items():  # to the copy, all of them are gone
        copy.record(client, "detach", attachment=call, killed=True)
    return copy


def _is_known(event: Fact, asked: set[int], events: list[Fact], taken_ms: int) -> bool:
    """Whether it is before the moment. Within its millisecond: what may be."""
    if event["time"] < taken_ms / 1000:
        return True
    if event["what"] in ASKED and event["phase"] == "fail":
        return event["call"] in asked
    if event["time"] > (taken_ms + 1) / 1000:
        return False
    if event["what"] == "deliver":  # one that was acknowledged before the moment does not come again
        behind = (e for e in events[event["n"] :] if e["time"] <= (taken_ms + 1) / 1000)
        return any(e["what"] in ("ack", "ack_one") and e["client"] == event["client"] for e in behind)
    return event["phase"] == "invoke"
