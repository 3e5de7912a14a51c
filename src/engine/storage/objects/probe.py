"""The probe at the start: a store that accepts two conditional PUTs of one name cannot hold a log."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import TYPE_CHECKING

from engine.aio.backoff import RetryDelay
from engine.clock import Clock
from engine.errors import StorageError, UnknownOutcomeError, UnsupportedError
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError, ObjectStore

if TYPE_CHECKING:
    import random

ATTEMPTS_MAX = 5
SAMPLES = 5
SAMPLE_SIZE = 1024


async def probe(store: ObjectStore, rng: random.Random) -> None:
    """Try that the second of two conditional PUTs is refused, and what is read is the first.

    Raises UnsupportedError if not; StorageError and what requests raise if the store cannot be used now.
    """
    token = rng.randbytes(16)
    name, first, second = f"probe/{token.hex()}", b"1" + token, b"2" + token
    delay = RetryDelay(rng)
    await _put(store, name, first, delay)
    try:
        try:
            accepted = not await _refused(store, name, second, delay)
        finally:
            found = bytes(await store.get(name))
    except ObjectMissingError:
        raise UnsupportedError(f"{store!r} does not return an object that it has just stored") from None
    finally:
        await store.delete([name])
    if accepted or found != first:
        raise UnsupportedError(
            f"{store!r} accepts two conditional PUTs (If-None-Match: *) of one name; "
            "without them two brokers could write one log: use a store that refuses the second"
        )


async def put_s(store: ObjectStore, rng: random.Random, clock: Clock) -> float:
    """The median of some PUTs of a small object, in seconds. Raises what requests raise."""
    names = [f"probe/{rng.randbytes(16).hex()}" for _ in range(SAMPLES)]
    took = []
    try:
        for name in names:
            began = clock.monotonic()
            await store.put_if_absent(name, [bytes(SAMPLE_SIZE)])
            took.append(clock.monotonic() - began)
    finally:
        await store.delete(names)
    return statistics.median(took)


async def _put(store: ObjectStore, name: str, data: bytes, delay: RetryDelay) -> None:
    """Store it; one's own object of an attempt that was not answered counts. A refusal is believed when it is there: a
    store may answer a PUT with 409 where there is nothing (R7).
    """
    while True:
        try:
            await store.put_if_absent(name, [data])
        except (ObjectExistsError, UnknownOutcomeError) as e:
            with contextlib.suppress(ObjectMissingError):
                await store.get_range(name, 0, 1)
                return
            await _pause(e, delay)
            continue
        return


async def _refused(store: ObjectStore, name: str, data: bytes, delay: RetryDelay) -> bool:
    while True:
        try:
            await store.put_if_absent(name, [data])
        except ObjectExistsError:
            return True
        except UnknownOutcomeError as e:
            await _pause(e, delay)
            continue
        return False


async def _pause(error: Exception, delay: RetryDelay) -> None:
    if delay.attempts >= ATTEMPTS_MAX:
        raise StorageError(f"the object store did not answer the probe: {error}") from None
    await asyncio.sleep(delay.next())
