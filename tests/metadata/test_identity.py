"""Each start on a metadata store has a generation of its own, also where several begin at once and answers are lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import CorruptionError
from engine.metadata import keys
from engine.metadata.identity import load_identity, raise_generation
from engine.metadata.memory import MemoryMetadataStore
from engine.model.identity import Identity
from engine.testing.metadata import FaultyMetadataStore


async def test_each_start_has_the_next_generation(store) -> None:
    assert await load_identity(store) is None
    first = await raise_generation(store, random.Random(1))
    assert first.generation == 1
    assert first.store
    for generation in (2, 3):
        found = await raise_generation(store, random.Random(generation))
        assert found == Identity(first.store, generation)
        assert await load_identity(store) == found


async def test_those_who_start_at_once_have_different_ones(store) -> None:
    found = await asyncio.gather(*(raise_generation(store, random.Random(n)) for n in range(8)))
    assert len({identity.store for identity in found}) == 1
    assert sorted(identity.generation for identity in found) == list(range(1, 9))


@pytest.mark.parametrize("seed", range(10))
async def test_a_lost_answer_gives_no_generation_twice(clock, seed: int) -> None:
    inner = MemoryMetadataStore(clock)
    faulty = FaultyMetadataStore(inner, random.Random(seed))
    faulty.unknown_rate = 0.5
    found = [await raise_generation(faulty, random.Random(n)) for n in range(10)]
    assert len({identity.store for identity in found}) == 1
    generations = [identity.generation for identity in found]
    assert generations == sorted(set(generations))
    assert await load_identity(inner) == found[-1]


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b'{"store": "1"}', b'{"store": "", "generation": 1}', b'{"store": "0", "generation": 1}',
        b'{"store": "10000000000000000", "generation": 1}', b'{"store": "12", "generation": 0}',
    ],
)  # fmt: skip
async def test_a_record_that_is_none_is_damage(store, value: bytes) -> None:
    await store.put(keys.STORE, value)
    with pytest.raises(CorruptionError, match="store record"):
        await raise_generation(store, random.Random(1))
    assert (await store.get(keys.STORE)).value == value
