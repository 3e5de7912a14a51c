"""`ClusterAdmin`: operations on the brokers that share a metadata store, and the calls that brokers send each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.broker.cluster.handover import ADOPT, ASK_S_MAX, BEQUEATH, EXPECT, OPEN_S_MAX, TARGET
from engine.broker.upkeep.balancer import HAND_OVER, HOLDINGS, LOAD
from engine.broker.upkeep.cluster_parts import ClusterParts
from engine.broker.upkeep.draining import LEAD
from engine.control.policy.placement import OPEN, traffic
from engine.errors import (
    ConnectError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    TimeoutError,
    UnsupportedError,
)
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName

_NAMES_SHOWN = 1_000  # objects of a sweep
_ROUND_S_MAX = 120.0  # one round of balance, at the balancer

_DRAIN, _UNDRAIN, _BALANCE, _UNLOAD, _FACTS = "drain", "undrain", "balance", "unload", "facts"


class ClusterAdmin:
    """`answer()` serves BROKER_CALL with the target "broker" (cluster.ports.ClusterCalls). Loop thread only."""

    def __init__(self, parts: ClusterParts) -> None:
        self._parts = parts
        self._brokers = parts.members.brokers
        self._answers: dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            EXPECT: self._expect,
            BEQUEATH: self._inherit,
            ADOPT: parts.handovers.adopt,
            HAND_OVER: self._hand_over,
            HOLDINGS: self._holdings,
            LOAD: self._load,
            LEAD: self._lead,
            _DRAIN: self._drain,
            _UNDRAIN: self._undrain,
            _BALANCE: self._balance,
            _UNLOAD: self._unload,
            _FACTS: self._facts,
        }

    async def answer(self, method: str, args: Mapping[str, Any]) -> Any:
        """See ClusterCalls."""
        call = self._answers.get(method)
        if call is None:
            raise InvalidArgumentError(f"unknown broker call {method!r:.80}")
        return await call(args)

    # -- operations ------------------------------------------------------------------------------------------------

    async def list_brokers(self) -> list[dict[str, Any]]:
        """See the table of operations."""
        record = await self._parts.metadata.newest.get(keys.BALANCER)
        balancer = None if record is None else record.value.decode()
        live, counts = self._brokers.live, self._parts.members.ownership.counts()
        found = []
        for url in sorted(live):
            said = live[url]
            try:
                facts = await self._ask(url, _FACTS, {}, ASK_S_MAX)
            except EngineError:
                facts = {"led": None, "segments": counts.get(url, 0)}
            found.append(
                {
                    "url": url,
                    "adminUrl": said.admin_url,
                    "draining": said.draining,
                    "balancer": url == balancer,
                    "segments": facts["segments"],
                    "topicsLed": facts["led"],
                    "load": round(OPEN * facts["segments"] + traffic(said.load), 3),
                    **said.load.to_mapping(),
                }
            )
        return found

    async def drain_broker(self, broker: str) -> None:
        self._check_lives(broker)
        await self._ask(broker, _DRAIN, {}, OPEN_S_MAX)

    async def undrain_broker(self, broker: str) -> None:
        self._check_lives(broker)
        await self._ask(broker, _UNDRAIN, {}, OPEN_S_MAX)

    async def balance_brokers(self, dry_run: bool) -> dict[str, Any]:
        """At the balancer."""
        found: dict[str, Any] = await self._ask(
            await self._parts.balancer.leader(), _BALANCE, {"dry_run": dry_run}, _ROUND_S_MAX
        )
        return found

    async def sweep_objects(self, dry_run: bool) -> dict[str, Any]:
        """By this broker."""
        objects = self._parts.objects
        if objects is None:
            raise UnsupportedError("this broker keeps no segments in an object store: start it with --objects URL")
        swept = await objects.sweep(dry_run=dry_run)
        return {
            "sessions": swept.sessions,
            "logObjects": swept.log_objects,
            "files": swept.files,
            "sizeBytes": swept.size,
            "names": swept.names[:_NAMES_SHOWN],
        }

    async def unload_topic(self, topic: str, to: str | None) -> list[dict[str, Any]]:
        """Each segment at its owner, one after the other."""
        view = await self._parts.service.ensure_topic(topic, create=False)
        names = [view.topic.segment(s.hash_range, s.segment_id) for s in view.layout.segments.values()]
        return [move for name in names for move in await self._unload_one(name, to)]

    async def unload_segment(self, segment: str, to: str | None) -> list[dict[str, Any]]:
        """At its owner."""
        name = SegmentName.parse(segment)
        view = await self._parts.service.ensure_topic(name.topic, create=False)
        info = view.layout.segments.get(name.segment_id)
        if info is None or info.hash_range != name.hash_range:
            raise NotFoundError(f"{name} is not in the layout of epoch {view.layout.epoch}")
        return await self._unload_one(name, to)

    async def _unload_one(self, name: SegmentName, to: str | None) -> list[dict[str, Any]]:
        if to is not None:
            self._check_lives(to)
        owner = await self._parts.members.ownership.owner(name)
        if owner is None or owner == to:
            return []
        found: list[dict[str, Any]] = await self._ask(
            owner, _UNLOAD, {"segment": str(name), "to": to}, ASK_S_MAX + 2 * OPEN_S_MAX
        )
        return found

    def _check_lives(self, url: str) -> None:
        if url not in self._brokers.live:
            known = ", ".join(sorted(self._brokers.live))
            raise NotFoundError(f"a broker must be one of {known}, got {url!r:.200}")

    async def _ask(self, url: str, method: str, args: Mapping[str, Any], timeout: float) -> Any:
        """Run it at that broker. Raises what it raises, ConnectError, TimeoutError."""
        if url == self._brokers.url:
            return await self.answer(method, args)
        try:
            return await self._parts.members.peers.call(url, TARGET, method, args, timeout)
        except TimeoutError as e:
            raise ConnectError(f"{e}; it may be done, or still be under way") from e

    # -- calls of other brokers ------------------------------------------------------------------------------------

    async def _expect(self, args: Mapping[str, Any]) -> None:
        self._parts.handovers.expect(args)

    async def _inherit(self, args: Mapping[str, Any]) -> None:
        self._parts.handovers.inherit(args)

    async def _hand_over(self, args: Mapping[str, Any]) -> None:
        await self._parts.handovers.hand_over(SegmentName.parse(args["segment"]), str(args["to"]))

    async def _holdings(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return self._parts.balancer.holdings()

    async def _load(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"load": self._parts.balancer.load()}

    async def _lead(self, args: Mapping[str, Any]) -> None:
        await self._parts.service.lead(TopicName.parse(args["topic"]))

    async def _drain(self, args: Mapping[str, Any]) -> None:
        await self._parts.draining.begin()
        await self._parts.balancer.resign()

    async def _undrain(self, args: Mapping[str, Any]) -> None:
        await self._parts.draining.end()

    async def _balance(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return await self._parts.balancer.round(dry_run=bool(args["dry_run"]), cooldown=0.0)

    async def _facts(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"led": len(self._parts.service.led()), "segments": self._parts.draining.segments}

    async def _unload(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Of an open segment of this broker, to the broker named or to one with little load; without any, its clients
        come again here.
        """
        name, parts = SegmentName.parse(args["segment"]), self._parts
        hosted, to = parts.members.segments.get(name), args.get("to")
        if hosted is None:
            if parts.members.ownership.alone:
                return []
            raise NotOwnerError(f"{name} is changing its owner; try again")
        if to is None:
            to = parts.draining.targets([hosted]).get(name, self._brokers.url)
        load = parts.draining.weight_of(hosted)
        if to == self._brokers.url:
            await parts.handovers.reopen(hosted)
        else:
            await parts.handovers.hand_over(name, str(to))
        return [{"segment": str(name), "source": self._brokers.url, "target": to, "load": round(load, 3)}]
