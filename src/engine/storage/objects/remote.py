"""`RemoteObjectStore`: S3, Google Cloud Storage and Azure through the library obstore (the extra `cluster`).

The library is imported when a store is opened. It repeats nothing: `Requests` does, which counts and paces.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.aio.workers import threads_end_before_the_interpreter
from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    EngineError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedError,
)
from engine.limits import MIB
from engine.storage.objects.location import Location
from engine.storage.objects.ports import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStatistics,
    Tail,
    each,
)
from engine.storage.objects.profiles import profile_of
from engine.storage.objects.requests import RequestLimits, Requests, TransientError
from engine.storage.objects.together import together

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

CONNECT_S_MAX = 5.0
PART_SIZE = 8 * MIB
PARTS_AT_ONCE = 4
_AROUND_PARTS = 2  # requests: the begin and the end of an upload
_STALL_TIMEOUTS = 4  # an upload has ended when for so many timeouts of a request nothing more of it was taken
NAMES_AT_ONCE = {"s3": 1_000, "az": 256, "gs": 1}  # that one request deletes
DELETES_AT_ONCE = 10  # requests
LIST_CHUNK = 1_000

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_SLOW = {"429", "503"}
_Infos = list[ObjectInfo]  # inside the class, `list` is a method
_Names = list[str]


class RemoteObjectStore:
    """An `ObjectStore` at a `Location`. Loop thread only. Its texts never contain credentials."""

    def __init__(self, location: Location, store: Any, library: Any, requests: Requests) -> None:
        self._location = location
        self._store = store
        self._library = library
        self._requests = requests

    @staticmethod
    def open(
        url: str, environment: Mapping[str, str], *, rng: random.Random, limits: RequestLimits | None = None
    ) -> RemoteObjectStore:
        """Open the store of a URL with the credentials of the environment. No request is made.

        Raises InvalidArgumentError, InvalidConfigurationError, UnsupportedError.
        """
        location, limits = Location.parse(url), limits or RequestLimits()
        try:
            import obstore
            import obstore.store
        except ImportError:
            raise UnsupportedError(f"{location} needs obstore 0.12 or later: pip install 'engine[cluster]'") from None
        makers = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
        client: dict[str, Any] = {
            "timeout": f"{limits.timeout_s + 1:g}s",  # ours comes first
            "connect_timeout": f"{min(CONNECT_S_MAX, limits.timeout_s):g}s",
            "allow_http": location.is_plain(environment),
        }
        try:
            of_profile, provider = _provider(location, environment)
            said = _without_token(environment) if of_profile else environment
            store = makers[location.scheme](
                location.bucket,
                prefix=location.prefix or None,
                config={**location.options(said), **of_profile},
                client_options=client,
                retry_config={"max_retries": 0},
                **provider,
            )
        except EngineError:
            raise
        except Exception as e:
            raise InvalidConfigurationError(f"{location} cannot be opened: {_first_line(e)}") from None
        threads_end_before_the_interpreter()
        return RemoteObjectStore(location, store, obstore, Requests(limits, rng))

    def __repr__(self) -> str:
        return f"RemoteObjectStore({str(self._location)!r})"

    # -- requests --------------------------------------------------------------------------------------------------

    async def put_if_absent(self, name: str, buffers: Sequence[Buffer]) -> None:
        async def put() -> None:
            with self._storing():
                await self._library.put_async(self._store, name, list(buffers), mode="create", use_multipart=False)

        await self._requests.once("put", f"PUT {name}", put)

    async def put_multipart(self, name: str, pieces: Iterable[Buffer] | AsyncIterable[Buffer], size: int) -> None:
        taken = 0

        async def measured() -> AsyncIterator[Buffer]:
            nonlocal taken
            async for piece in each(pieces):
                taken += memoryview(piece).nbytes
                yield piece

        async def put() -> None:
            with self._storing():
                await self._library.put_async(
                    self._store,
                    name,
                    measured(),
                    use_multipart=True,
                    chunk_size=PART_SIZE,
                    max_concurrency=PARTS_AT_ONCE,
                )

        async def put_while_it_goes_on() -> None:
            stall_s = _STALL_TIMEOUTS * self._requests.timeout_s
            task = asyncio.ensure_future(put())
            try:
                while True:
                    before = taken
                    done, _ = await asyncio.wait([task], timeout=stall_s)
                    if done:
                        return await task
                    if taken == before:
                        raise TransientError(f"nothing behind {taken:,} bytes was taken within {stall_s:g} s")
            finally:
                task.cancel()

        requests = max(1, -(-size // PART_SIZE)) + _AROUND_PARTS
        await self._requests.once("multipart", f"PUT {name}", put_while_it_goes_on, bounded=False, requests=requests)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """What is not found when something is stored is the bucket."""
        try:
            with _Translated():
                yield
        except ObjectMissingError:
            bucket = self._location.bucket
            raise StorageError(f"{self._location}: there is no {bucket!r} in the store; create it first") from None

    async def get(self, name: str) -> memoryview:
        async def get() -> memoryview:
            with _Translated():
                found = await self._library.get_async(self._store, name)
                return memoryview(await found.bytes_async())

        return await self._requests.repeated("get", f"GET {name}", get)

    async def get_range(self, name: str, start: int, end: int) -> memoryview:
        async def get() -> memoryview:
            with _Translated():
                return memoryview(await self._library.get_range_async(self._store, name, start=start, end=end))

        return await self._requests.repeated("get", f"GET {name} [{start}, {end})", get)

    async def get_tail(self, name: str, size: int) -> Tail:
        async def get() -> Tail:
            with _Translated():
                found = await self._library.get_async(self._store, name, options={"range": {"suffix": size}})
                return Tail(memoryview(await found.bytes_async()), found.meta["size"])

        async def head() -> int:
            with _Translated():
                return int((await self._library.head_async(self._store, name))["size"])

        if self._location.scheme != "az":
            return await self._requests.repeated("get", f"GET {name} [-{size})", get)
        whole = await self._requests.repeated("get", f"HEAD {name}", head)  # Azure knows no ranges from the end
        return Tail(await self.get_range(name, max(0, whole - size), whole), whole)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        while True:
            page = partial(self._page, prefix, after)
            found, is_last = await self._requests.repeated("list", f"LIST {prefix}", page)
            for info in found:
                yield info
            if is_last:
                return
            after = found[-1].name

    async def _page(self, prefix: str, after: str) -> tuple[_Infos, bool]:
        """The next objects behind a name, and whether there are no more. A store may know no lists that begin behind a
        name (Azurite does not): what was there before is left out here.
        """
        with _Translated():
            stream = self._library.list(self._store, prefix, offset=after or None, chunk_size=LIST_CHUNK)
            async for page in stream:
                infos = sorted(
                    ObjectInfo(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))
                    for each in page
                    if each["path"] > after
                )
                if infos:
                    return infos, len(page) < LIST_CHUNK
                self._requests.count("list", 1)
        return [], True

    async def delete(self, names: Sequence[str]) -> None:
        at_once = NAMES_AT_ONCE[self._location.scheme]
        some = [list(names[first : first + at_once]) for first in range(0, len(names), at_once)]
        for first in range(0, len(some), DELETES_AT_ONCE):
            await together(map(self._delete, some[first : first + DELETES_AT_ONCE]))

    async def _delete(self, names: _Names) -> None:
        """By one request."""

        async def delete() -> None:
            with _Translated():
                await self._library.delete_async(self._store, names)

        try:
            await self._requests.repeated("delete", f"DELETE of {len(names)} objects", delete)
        except ObjectMissingError:
            if len(names) > 1:  # the others may be there still
                for name in names:
                    await self._delete([name])

    def statistics(self) -> ObjectStatistics:
        return self._requests.statistics()

    async def close(self) -> None:
        self._requests.close()


def _provider(location: Location, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """(options with the credentials of a profile, which the library itself does not read; or else what gets them)."""
    profile = profile_of(environment) if location.scheme == "s3" else None
    if profile is None or profile.options:
        return ({} if profile is None else profile.options), {}
    try:
        from importlib import import_module

        boto3 = import_module("boto3")
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise InvalidConfigurationError(
            f"the profile {profile.name!r} of AWS has no keys in the files of profiles, or says how to get them, which "
            "needs boto3: pip install boto3"
        ) from None
    return {}, {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=profile.name))}


def _without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Without a session token, which belongs to other keys than those of a profile."""
    return {name: value for name, value in environment.items() if name != "AWS_SESSION_TOKEN"}


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


class _Translated:
    """Raises errors of the library as ours. Texts of a store may contain signatures and tokens: none is passed on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, TimeoutError):
            return
        name, text = type(error).__name__, str(error)
        status, code = _STATUS.search(text), _CODE.search(text)
        said = " ".join([status[1] if status else "no answer", *([code[1]] if code else [])])
        if isinstance(error, FileNotFoundError):
            raise ObjectMissingError("there is no such object") from None
        if name in ("AlreadyExistsError", "PreconditionError"):
            raise ObjectExistsError("there is an object of this name") from None
        if name == "UnauthenticatedError":
            raise AuthenticationError(f"the object store refused the credentials: {said}") from None
        if name == "PermissionDeniedError":
            raise AuthorizationError(f"the object store refused the request: {said}") from None
        if name == "NotSupportedError":
            raise UnsupportedError("the object store does not support the request") from None
        slow = (status is not None and status[1] in _SLOW) or "SlowDown" in text
        raise TransientError(f"the object store answered {said}" if status else "no connection", slow=slow) from None
