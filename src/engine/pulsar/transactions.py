"""Transactions of one connection, on the broker's coordinator, which can end any of them.

A client says what a transaction writes to and acknowledges in before it does that; here each SEND and ACK says it
itself, and is recorded with the message, so there is nothing to do for these requests.

The id of a transaction is (the highest bit of its number, the other bits): a client of theirs leaves out a lower half
that it takes for negative, and the upper half has to name the coordinator that it has asked. So there are two, both are
this broker, and one is begun anew until the highest bit of its number, which is random, is the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, InvalidArgumentError, TooManyRequestsError
from engine.model.transactions import ID_BITS, id_text, parse_id
from engine.pulsar.names import service_url
from engine.pulsar.server_errors import NO_COORDINATOR, number_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session

# The topic whose partitions are the coordinators, as clients ask for them.
COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATORS_COUNT = 2
_LOW_BITS = ID_BITS - 1
_ATTEMPTS_MAX = 64  # each has one chance in two
_ACTIONS = ("commit", "abort")


def transaction_of(header: Any) -> str | None:
    """The id of the transaction that a command is in; None for none. Raises InvalidArgumentError."""
    if not (header.txn_low or header.txn_high):
        return None
    if header.txn_high >= COORDINATORS_COUNT or header.txn_low >> _LOW_BITS:
        raise InvalidArgumentError(f"there is no transaction ({header.txn_high}, {header.txn_low})")
    return id_text(header.txn_high << _LOW_BITS | header.txn_low)


class Transactions:
    """Loop thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about transactions."""
        return {
            "tc_connect": self._connect,
            "watch_tcs": self._watch,
            "watch_tcs_close": lambda header, payload: None,
            "new_txn": self._begin(self._new, "new_txn_response"),
            "add_partition": self._begin(self._add, "add_partition_response"),
            "add_subscription": self._begin(self._add, "add_subscription_response"),
            "end_txn": self._begin(self._end, "end_txn_response"),
        }

    def _begin(self, work: Any, answer: str) -> Callable[[Any, memoryview], None]:
        """A handler that runs `work`, and sends the answer with the id that it returns, or with its error."""
        session = self._session

        def handle(header: Any, payload: memoryview) -> None:
            def failed(error: EngineError) -> None:
                session.say(answer, request=header.request, error=number_of(error), message=str(error))

            async def answered() -> None:
                high, low = divmod(await work(header), 1 << _LOW_BITS)
                session.say(answer, request=header.request, txn_low=low, txn_high=high)

            session.start(header.request, answered(), failed)

        return handle

    def _connect(self, header: Any, payload: memoryview) -> None:
        said: dict[str, Any] = {}
        if header.tc >= COORDINATORS_COUNT:
            said = {"error": NO_COORDINATOR, "message": f"coordinators are 0 to {COORDINATORS_COUNT - 1}"}
        self._session.say("tc_connect_response", request=header.request, **said)

    def _watch(self, header: Any, payload: memoryview) -> None:
        session = self._session
        url = session.host.addresses.url_for(session.stream)
        here = {"url": service_url(url), "url_tls": service_url(url, tls=True)}
        all_of_them = [{"tc": number, **here} for number in range(COORDINATORS_COUNT)]
        said = {"parallelism": COORDINATORS_COUNT, "assignments": all_of_them}
        session.say("watch_tcs_update", watch=header.watch, snapshot=said)

    async def _new(self, header: Any) -> int:
        if header.tc >= COORDINATORS_COUNT:
            raise InvalidArgumentError(f"tc_id must be 0 to {COORDINATORS_COUNT - 1}, got {header.tc}")
        for _ in range(_ATTEMPTS_MAX):
            begun = await self._session.ask(
                lambda number: commands.NewTxn(request_id=number, timeout=header.ttl_ms / 1000)
            )
            ident = begun.result["id"] if isinstance(begun.result, dict) else begun.result.id
            if parse_id(ident) >> _LOW_BITS == header.tc:
                return parse_id(ident)
            await self._session.ask(
                lambda number, ident=ident: commands.EndTxn(  # type: ignore[misc]
                    request_id=number, id=ident, action="abort"
                )
            )
        raise TooManyRequestsError("no transaction could be begun; try again")

    async def _add(self, header: Any) -> int:
        return parse_id(_named(header))

    async def _end(self, header: Any) -> int:
        if not 0 <= header.action < len(_ACTIONS):
            raise InvalidArgumentError(f"txn_action must be 0 or 1, got {header.action}")
        ident = _named(header)
        await self._session.ask(
            lambda number: commands.EndTxn(request_id=number, id=ident, action=_ACTIONS[header.action])
        )
        return parse_id(ident)


def _named(header: Any) -> str:
    ident = transaction_of(header)
    if ident is None:
        raise InvalidArgumentError("a transaction must be named")
    return ident
