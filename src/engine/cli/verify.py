"""How the demo judges what it received: vectorised checks of Arrow tables against the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.cli.flights import Flights, mean_delays, row_numbers

CARRIER_FIELD, ARRIVAL_DELAY_FIELD = 10, 9  # of a value split at commas; field 0 is the row number
DELAY_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: whether it holds, and what was found."""

    name: str
    good: bool
    found: str


def check_flights(flights: Flights, parts: list[Any]) -> list[Check]:
    """Count, bytes, order per key and positions of everything that was received, part by part as it came."""
    import pyarrow as pa

    table = pa.concat_tables(parts).combine_chunks()
    rows = row_numbers(table["value"].combine_chunks())
    return [
        check_count(flights, rows),
        check_content(flights, table, rows),
        check_key_order(flights, table, rows),
        check_offsets(table),
    ]


def check_count(flights: Flights, rows: np.ndarray[Any, Any]) -> Check:
    """Every flight once: none lost, none twice."""
    seen = np.bincount(rows, minlength=len(flights))
    lost, repeated = int((seen == 0).sum()), int((seen > 1).sum())
    return Check(
        "every flight exactly once",
        lost == repeated == 0 and len(seen) == len(flights),
        f"{len(rows):,} received, {lost:,} lost, {repeated:,} repeated",
    )


def check_content(flights: Flights, table: Any, rows: np.ndarray[Any, Any]) -> Check:
    """Key and value of each are those of its row, byte for byte."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.equal(table["value"], flights.values.take(pa.array(rows)))
    keys = pc.equal(table["key"].fill_null(b""), pc.cast(flights.keys, pa.binary()).fill_null(b"").take(pa.array(rows)))
    good = pc.sum(pc.and_(values, keys)).as_py()
    return Check("keys and values as they were sent", good == len(rows), f"{good:,} equal to the source")


def check_key_order(flights: Flights, table: Any, rows: np.ndarray[Any, Any]) -> Check:
    """The flights of each aircraft came in the order in which they were sent."""
    import pyarrow.compute as pc

    codes = pc.dictionary_encode(table["key"].combine_chunks())
    known = pc.is_valid(codes).to_numpy(zero_copy_only=False)
    ids = codes.indices.fill_null(-1).to_numpy()[known]
    together = np.argsort(ids, kind="stable")  # as they came, aircraft by aircraft
    same = np.diff(ids[together]) == 0
    late = int((np.diff(rows[known][together])[same] <= 0).sum())
    return Check("in order for every aircraft", late == 0, f"{len(codes.dictionary):,} aircraft, {late:,} out of order")


def check_offsets(table: Any) -> Check:
    """Each segment's offsets came from 0 on, none left out. Of one that consumers shared, not one after the other."""
    segments, offsets = table["segment"].to_numpy(), table["offset"].to_numpy()
    found = np.unique(segments)
    good = all(np.array_equal(np.sort(offsets[segments == s]), np.arange((segments == s).sum())) for s in found)
    return Check("every segment without a gap", good, f"{len(found)} segments")


def delay_columns(parts: list[Any]) -> tuple[Any, Any]:
    """(carriers, arrival delays) out of the values received."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.concat_tables(parts)["value"].combine_chunks()
    fields = pc.split_pattern(pc.cast(values, pa.string()), ",")
    delays = pc.list_element(fields, ARRIVAL_DELAY_FIELD)
    late = pc.cast(pc.if_else(pc.equal(delays, ""), pa.scalar(None, pa.string()), delays), pa.float64())
    return pc.list_element(fields, CARRIER_FIELD), late


def check_delays(flights: Flights, received: list[tuple[str, int, float]]) -> Check:
    """The means computed from the messages are those of the source."""
    expected = mean_delays(flights.carriers, flights.delays)
    same = [a[:2] == b[:2] and abs(a[2] - b[2]) < DELAY_TOLERANCE for a, b in zip(expected, received, strict=False)]
    good = len(expected) == len(received) and all(same)
    return Check("the same means as from the source", good, f"{len(received)} carriers")
