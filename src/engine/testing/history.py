"""What clients did and saw, written down as it happened: the input of checker.py, in memory or as lines of JSON.

Every event is a flat map with `n` (its place), `time`, `client`, `what` and `phase`. A call writes `invoke` before it
starts, and afterwards `ok`, `fail` (it surely had no effect) or `info` (unknown), with the same `call`. Values are
unique in a history, and name their client, counter and key.

    what        phase and fields
    send        invoke: value, key, topic; after (seconds, of a delayed one)    ok: segment, offset (-1: unknown)
                in a transaction also: transaction (its id), attempt; source (the value it was made from)
    attach      invoke: subscription, kind ("stream", "queue", "reader"), topic     ok
                of a reader also: resumes (n of the checkpoint it starts from; -1: earliest)
                of a queue also: ack_timeout (seconds), max_redeliveries
    detach      ok: attachment; what it holds may be another's from here on; killed: without a word
    deliver     ok: attachment (call of the attach), value, key, segment, offset; place (of a
                stream: the segment, or in a shared one the bucket, as position vectors call it);
                count (of a queue: of redeliveries)
    ack         invoke: subscription, positions {place: first offset not acknowledged}     ok: those that count
    ack_one     invoke: subscription, segment, offset; attachment     ok
                both in a transaction also: transaction, attempt; `ok` is then: kept until its end
    nack        ok: attachment, segment, offset
    letter      ok: subscription, segment, offset (of its origin), value; a dead letter, as it is read in the end
    checkpoint  ok: attachment (of a reader: what it was given before this event is behind it)
    drained     ok: subscription; it was read to the end, nothing is left; finished: nor will anything come back;
                made: the topic in which of each of its messages one was made
    reading     ok: reading; a final reading begins
    final       ok: reading, value, key, segment, offset; of one whole reading from earliest, in order
    healed      ok; no more faults, and time to notice: what is asked for from here on has to be done
    calm        invoke, ok; between them no server dies, no connection breaks but with a killed client
    layout      ok: epoch, segments [{id, start, end, state}]
    txn_begin   invoke: timeout (seconds), name     ok: transaction (its id), state ("OPEN", "COMMITTED", "ABORTED")
    txn_end     invoke: transaction, action ("commit", "abort"), accepted (attempts)
                ok, and fail when it is known: state, and accepted where others were accepted
    txn_state   invoke     ok: transaction, state, accepted; the answer to a query of its state
    txn_read    ok: transaction, value; what it does goes by that message
    fault       ok: text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Fact = dict[str, Any]


def value_of(client: str, counter: int, key: str | None, size: int = 0) -> bytes:
    """A value that names its client, counter and key; padded to `size` bytes."""
    text = json.dumps([client, counter, key]).encode()
    return text + b" " * (size - len(text))


def parse_value(value: bytes) -> tuple[str, int, str | None]:
    """(client, counter, key) of value_of(). Raises ValueError."""
    client, counter, key = json.loads(value)
    return client, counter, key


class History:
    """A growing list of events. `out`, when given, gets each as a line as well."""

    def __init__(self, now: Callable[[], float], out: Callable[[str], object] | None = None) -> None:
        self.events: list[Fact] = []
        self._now = now
        self._out = out
        self._calls = 0

    def record(self, client: str, what: str, phase: str = "ok", **fields: Any) -> int:
        """Write one event; its place."""
        event = {"n": len(self.events), "time": round(self._now(), 6), "client": client, "what": what, "phase": phase}
        event.update(fields)
        self.events.append(event)
        if self._out is not None:
            self._out(json.dumps(event) + "\n")
        return len(self.events) - 1

    def invoke(self, client: str, what: str, **fields: Any) -> Call:
        """Write the start of a call."""
        self._calls += 1
        self.record(client, what, "invoke", call=self._calls, **fields)
        return Call(self, client, what, self._calls)

    def undelivered(self, subscription: str, topic: str) -> bool:
        """Whether a final reading has shown something that no consumer of a subscription has received yet."""
        shown = {e["value"] for e in self.events if e["what"] == "final" and e["topic"] == topic}
        attachments = {
            e["call"] for e in self.events if e["what"] == "attach" and e.get("subscription") == subscription
        }
        given = (e["value"] for e in self.events if e["what"] == "deliver" and e["attachment"] in attachments)
        return bool(shown.difference(given))


class Call:
    """A started call; it ends once."""

    def __init__(self, history: History, client: str, what: str, number: int) -> None:
        self.number = number
        self._history = history
        self._client = client
        self._what = what

    def _end(self, phase: str, fields: Fact) -> None:
        self._history.record(self._client, self._what, phase, call=self.number, **fields)

    def ok(self, **fields: Any) -> None:
        self._end("ok", fields)

    def fail(self, error: object) -> None:
        """It surely had no effect."""
        self._end("fail", {"error": str(error)})

    def info(self, error: object) -> None:
        """It may have had an effect."""
        self._end("info", {"error": str(error)})


def load(lines: Iterable[str]) -> list[Fact]:
    """The events of lines that a History wrote; a torn last line is left out."""
    events = []
    for line in lines:
        if not line.endswith("\n"):
            break
        events.append(json.loads(line))
    return events
