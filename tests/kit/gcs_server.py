"""`GcsServer`: a stand-in for Google Cloud Storage in this process, as far as the library asks for it: the XML API.

It is of our own, made after Google's documentation of that API, as no emulator has its conditional PUTs: it shows what
the library sends (`x-goog-if-generation-match: 0`) and how answers are understood, not what Google's servers do.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from xml.sax.saxutils import escape

from aiohttp import web

BUCKET = "engine"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class GcsServer:
    """Use it with `async with`. `objects`: by name. `asked`: (method, name, headers) of all requests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.slow = 0  # so many of the next requests are answered 503
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._when = datetime(2026, 1, 1, tzinfo=UTC)

    async def __aenter__(self) -> GcsServer:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{bucket}", self._answer)
        app.router.add_route("*", "/{bucket}/{name:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """What an operator sets for such a server."""
        key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}", "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "")
        self.asked.append((request.method, name, dict(request.headers)))
        body = await request.read()
        if request.match_info["bucket"] != BUCKET:
            return _refused(404, "NoSuchBucket")
        if self.slow:
            self.slow -= 1
            return _refused(503, "ServiceUnavailable")
        if not name:
            return self._list(request)
        if "uploads" in request.query or "uploadId" in request.query:
            return self._upload(request, name, body)
        if request.method == "PUT":
            return self._put(name, body, request.headers.get("x-goog-if-generation-match"))
        if name not in self.objects:
            return _refused(404, "NoSuchKey")
        if request.method == "DELETE":
            del self.objects[name]
            return web.Response(status=204)
        return self._get(request, name)

    def _put(self, name: str, body: bytes, generation: str | None) -> web.Response:
        if generation == "0" and name in self.objects:
            return _refused(412, "PreconditionFailed")
        self.objects[name] = body
        return web.Response(headers={"ETag": _tag(body), "x-goog-generation": "1"})

    def _get(self, request: web.Request, name: str) -> web.Response:
        data, headers = self.objects[name], {"ETag": _tag(self.objects[name])}
        headers["Last-Modified"] = format_datetime(self._when, usegmt=True)
        found = _RANGE.fullmatch(request.headers.get("Range", ""))
        if found is None:
            return web.Response(body=data, headers=headers)
        first, last = found.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1 if first and last else len(data), len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[start:end], headers=headers)

    def _list(self, request: web.Request) -> web.Response:
        prefix, most = request.query.get("prefix", ""), int(request.query.get("max-keys", 1_000))
        after = max(request.query.get("start-after", ""), request.query.get("continuation-token", ""))
        found = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        some = found[:most]
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[name])}</Size>"
            f"<LastModified>{self._when:%Y-%m-%dT%H:%M:%S}.000Z</LastModified><ETag>x</ETag></Contents>"
            for name in some
        )
        more = f"<NextContinuationToken>{escape(some[-1])}</NextContinuationToken>" if len(found) > most else ""
        return _xml(f"<ListBucketResult>{more}{items}</ListBucketResult>")

    def _upload(self, request: web.Request, name: str, body: bytes) -> web.Response:
        """An upload in parts: its begin, a part, its end, or that it is given up."""
        if request.method == "POST" and "uploads" in request.query:
            ident = f"upload-{len(self._uploads)}"
            self._uploads[ident] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{ident}</UploadId></InitiateMultipartUploadResult>")
        parts = self._uploads[request.query["uploadId"]]
        if request.method == "PUT":
            parts[int(request.query["partNumber"])] = body
            return web.Response(headers={"ETag": _tag(body)})
        if request.method == "POST":
            self.objects[name] = b"".join(parts[number] for number in sorted(parts))
            return _xml('<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>')
        return web.Response(status=204)


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _xml(text: str) -> web.Response:
    return web.Response(text=f"<?xml version='1.0' encoding='UTF-8'?>{text}", content_type="application/xml")


def _refused(status: int, code: str) -> web.Response:
    return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")
