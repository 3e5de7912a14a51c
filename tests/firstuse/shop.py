"""A web application as its developer writes it: orders come over HTTP, and are served in order for each table.

SHOP_DATA names a directory for an engine in this process, SHOP_URL a broker that several workers share.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel

import engine


class Order(BaseModel):
    number: int
    table: str
    dish: str


def connected() -> Any:
    if url := os.environ.get("SHOP_URL"):
        return engine.AsyncClient(url)
    return engine.open_async(os.environ["SHOP_DATA"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        connected() as app.state.engine,
        app.state.engine.producer("orders", schema=Order) as app.state.orders,
        app.state.engine.producer("served") as served,
        app.state.engine.stream_consumer("orders", "kitchen", initial_position="earliest", schema=Order) as kitchen,
    ):

        async def serve(message: engine.Message[Order]) -> None:
            await served.send(b"%d" % message.value.number, key=message.key)

        serving = asyncio.create_task(kitchen.run(serve, concurrency=4))
        yield
        await kitchen.close()
        await serving


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take_order(order: Order, request: Request) -> int:
    """Answered when the order is on disk."""
    await request.app.state.orders.send(order, key=order.table)
    return order.number


@app.get("/served")
async def what_was_served(request: Request) -> dict[str, list[int]]:
    """The numbers of each table's orders so far."""
    reader = await request.app.state.engine.reader("served", columns=["key", "value"])
    tables: dict[str, list[int]] = {}
    async for batch in reader.record_batches():
        for row in batch.to_pylist():
            tables.setdefault(row["key"].decode(), []).append(int(row["value"]))
    return tables
