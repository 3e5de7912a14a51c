"""Random sharing of a segment against a slow reference: who may be sent what, and when (semantics 16 to 20, C2, C4)."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.errors import ConsumerBusyError, FencedError
from engine.wire.commands import Command
from tests.broker.sharing import Publisher, boundaries, round_trip, share, taken
from tests.kit.peer import Peer

MUCH = 10**6


class Attached:
    """One attachment as its client sees it. `got`: what it was sent of each bucket, in the order of its coming."""

    def __init__(self, peer: Peer, ident: int, name: str, mode: str, start: int) -> None:
        self.peer, self.ident, self.name, self.mode, self.start = peer, ident, name, mode, start
        self.got: dict[int, list[int]] = {}


class World:
    """Everything that was published, sent and acknowledged, by bucket and offset, in plain sets and lists."""

    def __init__(self, broker: Broker, segment: str, publisher: Publisher) -> None:
        self.broker, self.segment, self.publisher = broker, segment, publisher
        self.members: list[Attached] = []
        self.acknowledged: set[int] = set()
        self.first_sent: dict[int, list[int]] = {}

    def of_bucket(self, bucket: int) -> list[int]:
        return [o for o, b in enumerate(self.publisher.buckets) if b == bucket]

    def held(self, member: Attached, bucket: int) -> list[int]:
        return [o for o in member.got.get(bucket, []) if o not in self.acknowledged]

    async def settle(self) -> None:
        """Take what everybody was sent, and check each message of it."""
        for member in self.members:
            await round_trip(member.peer, self.segment)
        for member in self.members:
            for bucket, offset in taken(member.peer, member.ident):
                if member.mode == "shared" or offset >= member.start:
                    self.sent(member, bucket, offset)

    def sent(self, member: Attached, bucket: int, offset: int) -> None:
        assert offset not in self.acknowledged, f"{offset} is acknowledged and was sent again"
        for other in self.members:
            assert other is member or not self.held(other, bucket), f"{bucket}: {other.name} holds messages still"
        mine, all_of_it = member.got.setdefault(bucket, []), self.of_bucket(bucket)
        before = [o for o in all_of_it if o < offset]
        assert all(o in self.acknowledged or o in mine for o in before), f"{offset} came before others of {bucket}"
        assert not mine or mine[-1] < offset
        mine.append(offset)
        firsts = self.first_sent.setdefault(bucket, [])
        if offset not in firsts:
            unseen = [o for o in all_of_it if o not in firsts and o not in self.acknowledged]
            assert unseen[0] == offset, f"{offset} was sent, {unseen[0]} never"
            firsts.append(offset)

    # -- what happens --------------------------------------------------------------------------------------------------

    async def join(self, name: str, mode: str, credit: int) -> None:
        peer = await Peer.connect(self.broker)
        others = [m for m in self.members if m.name != name]
        busy = others and (mode == "exclusive" or others[0].mode == "exclusive")
        try:
            if mode == "shared":
                ident = await share(peer, self.segment, name, self.publisher.ends, credit=0)
            else:
                ident = await peer.consumer(self.segment, "exclusive", name=name, credit=0)
        except ConsumerBusyError:
            assert busy
            return
        assert not busy
        position = next(iter(self.broker.segments._hosted.values())).subscriptions["s"].cursor.position
        self.members = [*others, Attached(peer, ident, name, mode, position)]
        if credit:
            peer.flow(ident, credit)

    async def leave(self, member: Attached, lost: bool) -> None:
        self.members.remove(member)
        if lost:
            member.peer.stream.abort()
        else:
            await member.peer.ask(Command.CLOSE_CONSUMER, consumer_id=member.ident)

    async def start_over(self, rng: random.Random) -> None:
        """All leave; some come back, and say what they acknowledge before anything is read for them."""
        for one in list(self.members):
            await self.leave(one, lost=False)
        for name in rng.sample("abc", rng.randrange(4)):
            await self.join(name, "shared", 0)
        for member in self.members:
            await self.acknowledge(member, rng, everything=False, kept=1.0)
        for member in self.members:
            member.peer.flow(member.ident, rng.choice([3, MUCH]))

    async def acknowledge(self, member: Attached, rng: random.Random, everything: bool, kept: float = 0.5) -> None:
        """Some of what it has, and so often of what it has not, or has no more."""
        said = {b: offsets[-1 if everything else rng.randrange(len(offsets))] + 1 for b, offsets in member.got.items()}
        if self.first_sent and not everything and rng.random() < kept:  # ids that somebody kept
            for bucket in rng.sample(sorted(self.first_sent), rng.randrange(1, len(self.first_sent) + 1)):
                said[bucket] = max(said.get(bucket, 0), rng.choice(self.first_sent[bucket]) + 1)
        below = {o for b, p in said.items() for o in self.of_bucket(b) if o < p} - self.acknowledged
        asked = {"ack_type": "cumulative", "buckets": [[b, p] for b, p in said.items()]}
        refused: set[int] = set()
        try:
            await member.peer.ask(Command.ACK, consumer_id=member.ident, **asked)
        except FencedError as error:
            refused = set(map(int, str(error).split("[")[-1].rstrip("]").split(",")))
            assert member.mode == "shared"
        for other in self.members:
            held = {b for b in other.got if self.held(other, b)}
            assert other is member or not {self.publisher.buckets[o] for o in below} & held - refused
        assert not {b for b in member.got if self.held(member, b)} & refused, "who holds messages may acknowledge them"
        self.acknowledged |= {o for o in below if self.publisher.buckets[o] not in refused}


async def scenario(seed: int, ends: tuple[int, ...], steps: int, directory: Path) -> None:
    rng = random.Random(seed)
    broker = Broker(directory / "data", config=BrokerConfig())
    await broker.start()
    try:
        peer = await Peer.connect(broker)
        with boundaries(ends):
            segment = await peer.segment("orders")
        world = World(broker, segment, await Publisher.of(peer, segment, ends))
        await world.publisher.publish([0])
        for _ in range(steps):
            await step(world, rng)
            await world.settle()
        await finish(world, rng)
    finally:
        await Peer.end_all()
        await broker.close()


async def step(world: World, rng: random.Random) -> None:
    """One thing that happens."""
    member = rng.choice(world.members) if world.members else None
    what = rng.random()
    if what < 0.25 or member is None:
        mode = "exclusive" if rng.random() < 0.3 else "shared"
        await world.join(rng.choice("abcdef"), mode, rng.choice([0, 3, 20, MUCH]))
    elif what < 0.45:
        buckets = [rng.randrange(len(world.publisher.ends)) for _ in range(rng.randrange(1, 12))]
        await world.publisher.publish(buckets, per_entry=rng.randrange(1, 4))
    elif what < 0.6:
        member.peer.flow(member.ident, rng.choice([1, 5, 50]))
    elif what < 0.88:
        await world.acknowledge(member, rng, everything=rng.random() < 0.4)
    elif what < 0.94:
        await world.leave(member, lost=rng.random() < 0.5)
    else:
        await world.start_over(rng)


async def finish(world: World, rng: random.Random) -> None:
    """Whoever is there takes and acknowledges everything; then nothing is left."""
    if not world.members:
        await world.join("z", "shared", MUCH)
    for member in world.members:
        member.peer.flow(member.ident, MUCH)
    for _ in range(2 * len(world.members) + 2):
        await world.settle()
        for member in world.members:
            await world.acknowledge(member, rng, everything=True)
    assert world.acknowledged == set(range(len(world.publisher.buckets)))
    subscription = next(iter(world.broker.segments._hosted.values())).subscriptions["s"]
    assert (subscription.backlog, subscription.cursor.acked_count) == (0, 0)
    sharing = subscription.sharing
    assert sharing is None or sharing.withheld == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    ends=st.one_of(
        st.sampled_from([(0xFFFF,), (0x7FFF, 0xFFFF), (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)]),
        st.sets(st.integers(0, 0xFFFE), min_size=1, max_size=9).map(lambda inner: (*sorted(inner), 0xFFFF)),
    ),
    steps=st.integers(1, 40),
)
def test_semantics_16_to_20_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ends: tuple[int, ...], steps: int
) -> None:
    """Of a bucket: first deliveries without a gap and in order, one holder at a time, nothing acknowledged again."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as directory:
        asyncio.run(scenario(seed, ends, steps, Path(directory)))
