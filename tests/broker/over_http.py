"""Calls of a broker's admin API over HTTP."""

from __future__ import annotations

from typing import Any

import aiohttp

BASE = "/admin/v2/scalable/public/default"


async def call(http: aiohttp.ClientSession, method: str, path: str, status: int = 204, **options: Any) -> Any:
    """The answer's JSON, or its text; it has to have the status."""
    async with http.request(method, path, **options) as response:
        text = await response.text()
        assert response.status == status, text
        return await response.json() if response.content_type == "application/json" else text
