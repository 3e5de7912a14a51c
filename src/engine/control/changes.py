"""Long changes as lists of phases: each idempotent, each recorded when reached, resumed by whoever leads next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Phase:
    """One step. `act` may run again after a crash, any number of times."""

    name: str
    act: Callable[[], Awaitable[None]]


async def run_phases(phases: Sequence[Phase], start: str, reached: Callable[[str], Awaitable[None]]) -> None:
    """Run the phases from the one called `start`; `reached` makes durable which comes next, before it begins.

    What a phase raises ends the run; the change is resumed later at that phase. UnsupportedError when the list has
    no phase called `start`: a newer version began the change.
    """
    names = [phase.name for phase in phases]
    if start not in names:
        raise UnsupportedError(f"a change stands at the unknown phase {start!r}; known are {', '.join(names)}")
    for position in range(names.index(start), len(phases)):
        if names[position] != start:
            await reached(names[position])
        await phases[position].act()
