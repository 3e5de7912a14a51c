"""`Numbered`: transactions of one client, one at a time, each done once however often it is sent.

A client has a key of its own, `writers/{id}`, that holds the number of its last transaction. Each transaction demands
that this key is as the one before left it, and writes its own number:

    if writers/7f… has revision 4711:  writers/7f… = 18, and what the transaction is for
    else:                              read writers/7f…

So one whose answer was lost is simply sent again. If it was done the first time, the second finds its own number there,
whose revision is that of the transaction; what its parts had found is then read from etcd as it was one revision
before. One that is given up may still be under way: until another one of this client has been answered (`fence()`),
what is in etcd must not be taken for the outcome.

The key is on a lease of a minute, whose id is the client's, and vanishes when the client is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from engine.clock import Clock
from engine.errors import DiskFullError, EngineError, TimeoutError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster, CompactedError, LeaseNotFoundError, UnsureError
from engine.metadata.etcd.layout import Layout
from engine.metadata.etcd.leases import grant
from engine.metadata.etcd.requests import READS_MAX, in_buckets, in_order, is_revision, put_op, read_op
from engine.metadata.store import OutcomeUnknownError

log = logging.getLogger(__name__)

LEASE_S = 60
_KEPT_ALIVE_S = 15.0


class Numbered:
    """Loop thread only; one caller at a time."""

    def __init__(self, cluster: Cluster, layout: Layout, clock: Clock) -> None:
        self.unsure = False  # one that was given up may still be under way
        self._cluster = cluster
        self._layout = layout
        self._clock = clock
        self._lease = 0
        self._key = b""
        self._revision = 0  # of the last transaction
        self._number = 0
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Get a lease, and a key that no other client has. Raises TimeoutError, and as Cluster.call()."""
        self._lease, _ = await grant(self._cluster, LEASE_S)
        self._key, self._revision = self._layout.writer(self._lease), 0
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_alive(), name="etcd writer's lease")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEPT_ALIVE_S)
            with contextlib.suppress(EngineError, LeaseNotFoundError):  # the next transaction finds out
                await self._cluster.keep_alive(self._lease, self._clock.monotonic() + _KEPT_ALIVE_S)

    async def end(self) -> None:
        """Give up the lease, as far as etcd can be reached. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
            with contextlib.suppress(EngineError, LeaseNotFoundError):
                request = m.LeaseRevokeRequest(ID=self._lease)
                await self._cluster.call("LeaseRevoke", request, due=self._clock.monotonic() + 1.0)

    async def fence(self) -> None:
        """Make sure that nothing which was given up is done from now on. Raises as do()."""
        await self.do([], self._clock.monotonic() + self._cluster.timeout)

    async def do(self, parts: Sequence[Any], due: float) -> tuple[int, list[Any]]:
        """Do one transaction of independent nested ones: (its revision, their answers in order).

        Raises TimeoutError, DiskFullError, LeaseNotFoundError (of a session): nothing was done. OutcomeUnknownError.
        """
        self._number += 1
        number = b"%d" % self._number
        failures: list[str] = []
        while True:
            request = m.TxnRequest(
                compare=[is_revision(self._key, self._revision)],
                success=[put_op(self._key, number, self._lease), *in_buckets(list(parts))],
                failure=[read_op(self._key)],
            )
            answer = await self._send(request, due, failures)
            if answer is None:
                continue
            if answer.succeeded:
                self._revision, self.unsure = answer.header.revision, False
                return self._revision, list(in_order(answer.responses[1:], len(parts)))
            found = answer.responses[0].response_range.kvs
            if not found:
                await self._renew(failures)
                continue
            self._revision = found[0].mod_revision
            if found[0].value == number:
                self.unsure = False
                return self._revision, await self._read_back(parts, self._revision, due)

    async def _send(self, request: Any, due: float, failures: list[str]) -> Any:
        """None: the client's lease has ended, and there is a new one."""
        try:
            return await self._cluster.call("Txn", request, due=due, failures=failures)
        except UnsureError as e:
            self.unsure = True
            raise OutcomeUnknownError(str(e)) from e
        except TimeoutError:
            raise
        except LeaseNotFoundError:
            if not await self._lives():
                await self._renew(failures)
                return None
            raise self._surely(LeaseNotFoundError(), failures) from None
        except (EngineError, DiskFullError) as e:
            raise self._surely(e, failures) from e

    def _surely(self, error: Exception, failures: list[str]) -> Exception:
        """`error`, if the transaction cannot have been done by an attempt before the one that was refused."""
        if not failures:
            return error
        self.unsure = True
        return OutcomeUnknownError(f"an attempt was not answered ({failures[-1]}), the next one refused: {error}")

    async def _lives(self) -> bool:
        answer = await self._cluster.call("LeaseTimeToLive", m.LeaseTimeToLiveRequest(ID=self._lease))
        return bool(answer.TTL > 0)

    async def _renew(self, failures: list[str]) -> None:
        """The lease has ended, and with it all that could have been under way."""
        await self.begin()
        self.unsure = False
        if failures:
            raise OutcomeUnknownError(f"etcd was not reached for {LEASE_S} s ({failures[-1]})")

    async def _read_back(self, parts: Sequence[Any], revision: int, due: float) -> list[Any]:
        """What a transaction has found that was done without an answer."""
        answers = []
        try:
            for part in parts:
                answers.append(await self._found_before(part.request_txn, revision, due))
        except (CompactedError, EngineError) as e:
            raise OutcomeUnknownError(f"the transaction was done, and what it found could not be read: {e}") from e
        return answers

    async def _found_before(self, part: Any, revision: int, due: float) -> Any:
        """The answer to one nested transaction, found in the state before its revision.

        Of a refused one it holds the keys as they were then.
        """
        compared = list(part.compare)
        whole = [one for one in compared if one.range_end]
        if whole:
            return await self._range_before(part, whole[0], revision, due)
        kvs = []
        for at in range(0, len(compared), READS_MAX):
            reads = [read_op(one.key, revision - 1) for one in compared[at : at + READS_MAX]]
            answer = await self._cluster.call("Txn", m.TxnRequest(success=reads), due=due)
            kvs += [response.response_range for response in answer.responses]
        met = all(
            (found.kvs[0].mod_revision if found.kvs else 0) == one.mod_revision
            for one, found in zip(compared, kvs, strict=True)
        )
        return m.txn_answer(met, kvs)

    async def _range_before(self, part: Any, whole: Any, revision: int, due: float) -> Any:
        """The same of a deletion of a range."""
        request = m.RangeRequest(key=whole.key, range_end=whole.range_end, revision=revision - 1, keys_only=True)
        found = await self._cluster.call("Range", request, due=due)
        met = all(kv.mod_revision < whole.mod_revision for kv in found.kvs)
        return m.deletion_answer(met, len(found.kvs))
