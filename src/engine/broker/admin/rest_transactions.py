"""Transactions over HTTP: which are open, where one takes part, and ending it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from engine.errors import InvalidArgumentError

if TYPE_CHECKING:
    from engine.broker.server import Broker

TRANSACTIONS = "/admin/v2/transactions"
N = TypeVar("N", int, float)


def transaction_routes(broker: Broker) -> list[web.RouteDef]:
    """All of them."""
    transactions = _Transactions(broker)
    return [
        web.get(TRANSACTIONS, transactions.list),
        web.get(TRANSACTIONS + "/{transaction}", transactions.get),
        web.post(TRANSACTIONS + "/{transaction}/abort", transactions.abort),
    ]


class _Transactions:
    """Those of the whole metadata store."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def list(self, request: web.Request) -> web.Response:
        age, limit = request.query.get("openLongerThan"), request.query.get("limit")
        found = await self._broker.admin.list_transactions(
            open_longer_than=None if age is None else _number(age, float, "openLongerThan"),
            segment=request.query.get("segment"),
            limit=None if limit is None else _number(limit, int, "limit"),
        )
        return web.json_response(found)

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(await self._broker.admin.get_transaction(request.match_info["transaction"]))

    async def abort(self, request: web.Request) -> web.Response:
        await self._broker.admin.abort_transaction(request.match_info["transaction"])
        return web.Response(status=204)


def _number(text: str, kind: Callable[[str], N], name: str) -> N:
    try:
        return kind(text)
    except ValueError:
        raise InvalidArgumentError(f"query parameter {name} is {text!r:.80}; a number is right") from None
