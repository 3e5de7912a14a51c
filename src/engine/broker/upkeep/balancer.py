"""`Balancer`: one broker of the cluster, elected, moves a few segments at a time from loaded brokers to others.

What to move is decided by `control/policy/balance.py`. Election is an ephemeral record: the broker that makes it leads
until its session ends, it drains, or it closes. Correctness does not depend on there being one balancer: a segment is
moved by its owner, by compare-and-set, and the worst that two balancers could do is to move too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from engine.broker.cluster.handover import ASK_S_MAX, OPEN_S_MAX, TARGET, Handovers
from engine.broker.cluster.membership import Membership
from engine.broker.settings.config import BrokerConfig
from engine.control.policy.balance import BalanceRules, Holding, Move, givers, imbalance, plan
from engine.errors import EngineError, NotOwnerError
from engine.metadata import keys, unsure
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.names import SegmentName

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

log = logging.getLogger(__name__)

HAND_OVER, HOLDINGS, LOAD = "hand_over", "holdings", "load"

_HOLDINGS_MAX = 256  # segments that a broker offers, of all sizes that it has
_MOVE_S_MAX = ASK_S_MAX + 2 * OPEN_S_MAX


class Balancer:
    """Loop thread only. `moves`, `rounds`: made here, as the leader."""

    def __init__(
        self,
        members: Membership,
        handovers: Handovers,
        metadata: MetadataStore,
        config: Callable[[], BrokerConfig],
        weight: Callable[[HostedSegment], float],
    ) -> None:
        """`config`: in effect now. `weight`: of an open segment, in units (policy.placement)."""
        self._members = members
        self._brokers = members.brokers
        self._handovers = handovers
        self._metadata = metadata
        self._config = config
        self._weight = weight
        self._turn = asyncio.Lock()
        self._led = False  # at the last look: the first one after an election moves nothing
        self.moves = 0
        self.rounds = 0

    @property
    def leading(self) -> bool:
        """Whether this broker is the balancer, as of its last look."""
        return self._led

    async def run(self) -> None:
        """Until cancelled. A failed round is logged, and the next one runs."""
        while True:
            await asyncio.sleep(self._config().balance_interval)
            try:
                await self.look()
            except (EngineError, OutcomeUnknownError, ConflictError) as e:
                self._led = False
                log.info("no round of balance: %s", e)

    async def look(self) -> None:
        """One turn of the loop: lead where no broker does, and as the leader run a round."""
        if self._brokers.alone:
            self._led = False
        elif self._brokers.draining or not self._config().balance_enabled:
            await self.resign()
        else:
            led, self._led = self._led, await self._lead()
            if led and self._led:
                await self.round()

    async def leader(self) -> str:
        """The URL of the balancer; this broker, where there was none. Raises NotOwnerError, the store's errors."""
        self._led = self._led or await self._lead()
        if self._led:
            return self._brokers.url
        record = await self._metadata.newest.get(keys.BALANCER)
        if record is None:
            raise NotOwnerError("the balancer has just resigned; try again")
        return record.value.decode()

    async def _lead(self) -> bool:
        session = await self._brokers.session()
        try:
            await self._metadata.put(keys.BALANCER, self._brokers.url.encode(), ABSENT, session=session)
        except (ConflictError, OutcomeUnknownError):
            record = await self._metadata.newest.get(keys.BALANCER)
            return record is not None and record.stat.session == session.id
        log.info("%s balances the brokers", self._brokers.url)
        return True

    async def resign(self) -> None:
        """Let another broker lead. Idempotent. Raises what the metadata store raises."""
        if self._led:
            self._led = False
            record = await self._metadata.newest.get(keys.BALANCER)
            if record is not None and record.stat.session == self._brokers.session_id:
                with contextlib.suppress(ConflictError):
                    await unsure.delete(self._metadata, keys.BALANCER, record.stat.version)

    # -- a round -------------------------------------------------------------------------------------------------------

    async def round(self, *, dry_run: bool = False, cooldown: float | None = None) -> dict[str, Any]:
        """Decide on moves and make them, one after the other. `dry_run`: decide alone. `cooldown`: another one.

        What was found: {"imbalance", "moves"}; a move that its owner refused has an "error".
        """
        config = self._config()
        rules = BalanceRules(
            config.balance_guard, config.balance_cooldown if cooldown is None else cooldown, config.balance_moves_max
        )
        async with self._turn:
            loads = await self._loads()
            offers = await self._offers(givers(loads, rules.guard))
            loads |= {url: load for url, (load, _) in offers.items()}
            decided = plan(loads, {url: holdings for url, (_, holdings) in offers.items()}, rules)
            self.rounds += 1
            moves = [described(move) if dry_run else await self._make(move) for move in decided]
        return {"imbalance": round(imbalance(loads.values()), 3), "moves": moves}

    async def _loads(self) -> dict[str, float]:
        """{URL: load now} of the brokers that take segments; what one said last, where it does not answer."""
        loads = self._members.ownership.loads()
        answers = await asyncio.gather(*(self._ask(url, LOAD, {}, ASK_S_MAX) for url in loads), return_exceptions=True)
        for url, answer in zip(list(loads), answers, strict=True):
            if isinstance(answer, EngineError):
                log.info("%s does not say its load in this round: %s", url, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                loads[url] = float(answer["load"])
        return loads

    async def _offers(self, urls: Iterable[str]) -> dict[str, tuple[float, list[Holding]]]:
        """{URL: (its load, segments that it has)}; a broker that does not answer keeps what it has."""
        found = {}
        for url in urls:
            try:
                answer = await self._ask(url, HOLDINGS, {}, ASK_S_MAX)
            except EngineError as e:
                log.info("%s gives no segments in this round: %s", url, e)
            else:
                found[url] = float(answer["load"]), [Holding(*one) for one in answer["segments"]]
        return found

    async def _make(self, move: Move) -> dict[str, Any]:
        facts = described(move)
        try:
            await self._ask(move.source, HAND_OVER, {"segment": move.segment, "to": move.target}, _MOVE_S_MAX)
        except EngineError as e:
            log.warning("%s stays at %s: %s", move.segment, move.source, e)
            return facts | {"error": str(e)}
        self.moves += 1
        log.info("balance: %s went from %s to %s, load %.1f", move.segment, move.source, move.target, move.load)
        return facts

    async def _ask(self, url: str, method: str, args: Mapping[str, Any], timeout: float) -> Any:
        if url != self._brokers.url:
            return await self._members.peers.call(url, TARGET, method, args, timeout)
        if method == LOAD:
            return {"load": self.load()}
        if method == HOLDINGS:
            return self.holdings()
        return await self._handovers.hand_over(SegmentName.parse(args["segment"]), args["to"])

    def load(self) -> float:
        """The load of this broker, in units."""
        return sum(map(self._weight, self._members.segments))

    def holdings(self) -> dict[str, Any]:
        """What this broker has: {"load", "segments": [[name, load, seconds since it was opened], …]}."""
        now = asyncio.get_running_loop().time()
        held = sorted(((self._weight(h), str(h.name), now - h.opened_s) for h in self._members.segments), reverse=True)
        step = -(-len(held) // _HOLDINGS_MAX) or 1
        offered = [[name, load, seconds] for load, name, seconds in held[::step]]
        return {"load": sum(load for load, _, _ in held), "segments": offered}


def described(move: Move) -> dict[str, Any]:
    """A move, as the admin API says it."""
    return {"segment": move.segment, "source": move.source, "target": move.target, "load": round(move.load, 3)}
