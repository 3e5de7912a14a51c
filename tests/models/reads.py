"""The model of a client that reads rolled files from their objects, while its owner names, and retention deletes them.

The owner's log has the values 0, 1, 2, …, one at each offset and one in each file. The reader asks the owner which
objects there are, and reads them one after the other; in between anything may happen, for as long as it likes: there is
no grace. A former owner uploads what it believes to be the log, late.

nothing is invented     the reader gets the owner's values
nothing is lost         it gets each offset, but for those of which it is told that retention has deleted them
nothing is damaged      an owner that is asked for messages has them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.models.explorer import ViolationError

ZOMBIES = -1  # a value that was never acknowledged


class ReadRule(Enum):
    """A part of a rule of docs/formats/objects.md that can be switched off."""

    R13_NAME = "a file's name has its uploader's session and term and the number of the try"
    R17_RECORD = "retention writes the record before it deletes objects"
    R17_AGAIN = "a reader that finds no object asks the owner for what it lacks"


class Named(NamedTuple):
    """A file, as the record has it and readers are told. It has one offset."""

    key: tuple[object, ...]
    offset: int


class Reading(NamedTuple):
    """The state. `plan`: what the reader was told and has not read; None: it has to ask."""

    objects: frozenset[tuple[tuple[object, ...], int]] = frozenset()  # key, value
    named: tuple[Named, ...] = ()
    end: int = 0  # of the named files
    floor: int = 0  # of the record: what lies below was deleted
    gone: frozenset[tuple[object, ...]] = frozenset()  # keys that retention may delete
    zombie: bool = True  # its upload is on the way
    offset: int = 0  # the reader's
    plan: tuple[Named, ...] | None = None
    got: tuple[int, ...] = ()  # values, in order
    told: frozenset[int] = frozenset()  # offsets that it knows to be deleted


@dataclass(frozen=True, kw_only=True)
class ReadModel:
    """One instance as the explorer wants it: a log of `size` entries."""

    size: int = 3
    off: frozenset[ReadRule] = frozenset()

    def initial(self) -> Reading:
        return Reading()

    def steps(self, state: Reading) -> Iterator[tuple[str, Reading]]:
        yield from self._owning(state)
        yield from self._deleting(state)
        yield from self._reading(state)

    def _key(self, offset: int, who: str) -> tuple[object, ...]:
        return (offset, who) if ReadRule.R13_NAME not in self.off else (offset,)

    def _owning(self, state: Reading) -> Iterator[tuple[str, Reading]]:
        if state.end < self.size:
            file = Named(self._key(state.end, "owner"), state.end)
            objects = _put(state.objects, file.key, state.end)
            named = state._replace(objects=objects, named=(*state.named, file), end=state.end + 1)
            yield f"the owner names file {file.offset}", named
        if state.zombie:
            objects = _put(state.objects, self._key(1, "zombie"), ZOMBIES)
            yield "a former owner's upload arrives", state._replace(objects=objects, zombie=False)

    def _deleting(self, state: Reading) -> Iterator[tuple[str, Reading]]:
        if state.named:
            first, *rest = state.named
            gone = state.gone | {first.key}
            if ReadRule.R17_RECORD in self.off and first.key not in state.gone:
                yield f"retention gives up the object of {first.offset}", state._replace(gone=gone)
            else:
                kept = state._replace(named=tuple(rest), floor=first.offset + 1, gone=gone)
                yield f"retention drops file {first.offset} from the record", kept
        for key, value in state.objects:
            if key in state.gone:
                yield f"the object {key} is deleted", state._replace(objects=state.objects - {(key, value)})

    def _reading(self, state: Reading) -> Iterator[tuple[str, Reading]]:
        if state.offset == self.size:
            return
        if not state.plan:
            yield self._asked(state)
            return
        file, plan = state.plan[0], state.plan[1:]
        found = dict(state.objects).get(file.key)
        if found is not None:
            yield f"the reader reads the object of {file.offset}", _received(state, found, plan)
        elif ReadRule.R17_AGAIN in self.off:
            missed = state._replace(offset=file.offset + 1, plan=plan)
            yield f"the reader takes the missing object of {file.offset} for an empty one", missed
        else:
            yield self._sent(state)

    def _asked(self, state: Reading) -> tuple[str, Reading]:
        told = tuple(file for file in state.named if file.offset >= state.offset)
        if told and told[0].offset == state.offset:
            return "the reader is told of objects", state._replace(plan=told)
        return self._sent(state)

    def _sent(self, state: Reading) -> tuple[str, Reading]:
        """The owner sends the next message, of its files or of its log, or says what was deleted."""
        if state.offset < state.floor:
            deleted = frozenset(range(state.offset, state.floor))
            after = state._replace(offset=state.floor, plan=None, told=state.told | deleted)
            return f"the reader is told that what lies below {state.floor} was deleted", after
        file = next((file for file in state.named if file.offset == state.offset), None)
        if file is not None and dict(state.objects).get(file.key) is None:
            raise ViolationError(f"DAMAGED: the record names the object {file.key}, and it is gone")
        value = state.offset if file is None else dict(state.objects)[file.key]
        return f"the owner sends {state.offset}", _received(state, value, None)

    def check(self, state: Reading) -> None:
        values = iter(state.got)
        for offset in range(state.offset):
            if offset in state.told:
                continue
            value = next(values, None)
            if value == ZOMBIES:
                raise ViolationError(f"INVENTED: the reader got what was never acknowledged at offset {offset}")
            if value != offset:
                raise ViolationError(f"LOST: the reader is at {state.offset}, and did not get {offset}")

    def check_end(self, state: Reading) -> None:
        if state.offset < self.size:
            raise ViolationError(f"STUCK: the reader waits at {state.offset} for ever")


def _put(
    objects: frozenset[tuple[tuple[object, ...], int]], key: tuple[object, ...], value: int
) -> frozenset[tuple[tuple[object, ...], int]]:
    """A store keeps one object of a name: uploads in parts replace."""
    return frozenset(each for each in objects if each[0] != key) | {(key, value)}


def _received(state: Reading, value: int, plan: tuple[Named, ...] | None) -> Reading:
    return state._replace(offset=state.offset + 1, plan=plan, got=(*state.got, value))
