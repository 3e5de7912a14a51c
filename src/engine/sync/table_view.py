"""The blocking `TableView`."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from engine.aio.portal import Portal
from engine.client.base.options import check_timeout
from engine.sync.closing import close_collected, run_to_close

if TYPE_CHECKING:
    from engine.client import AsyncTableView, TableViewStatistics
    from engine.client.views.table_view import Changed

V = TypeVar("V")
D = TypeVar("D")


class TableView(Generic[V]):
    """The latest value of each key. Made by `client.table_view()`; usable with `with`, from any number of threads.

    A Mapping whose keys may be given as bytes or text, and come back as bytes. Reading never waits and asks no broker.
    Every method raises AlreadyClosedError after close(), and the reason when the view could not go on.
    """

    def __init__(self, portal: Portal, view: AsyncTableView[V]) -> None:
        self._portal = portal
        self._view = view.disown()

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._view.topic

    def __getitem__(self, key: bytes | str) -> V:
        """The latest value. Raises KeyError; SchemaError for a value that the schema cannot read."""
        return self._view[key]

    @overload
    def get(self, key: bytes | str) -> V | None: ...
    @overload
    def get(self, key: bytes | str, default: D) -> V | D: ...
    def get(self, key: bytes | str, default: Any = None) -> Any:
        """The latest value, or `default`. Raises SchemaError."""
        return self._view.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._view

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[bytes]:
        """The keys, as they are now."""
        return iter(self._view)

    def keys(self) -> KeysView[bytes]:
        """The keys, as they are now."""
        return dict.fromkeys(self._view.keys()).keys()

    def values(self) -> ValuesView[V]:
        """The latest value of every key, as they are now. Raises SchemaError."""
        return dict(self._view.items()).values()

    def items(self) -> ItemsView[bytes, V]:
        """Keys and their latest values, as they are now. Raises SchemaError."""
        return dict(self._view.items()).items()

    def refresh(self, timeout: float | None = None) -> None:
        """Wait until the view has all that was acknowledged to its producers before this call.

        Raises TimeoutError after `timeout` seconds (None: as long as it takes), NotFoundError when the topic is gone,
        ConnectError, and what the view failed with.
        """
        check_timeout(timeout)
        self._portal.run(self._view.refresh(timeout))

    def wait(self, condition: Callable[[Self], object], timeout: float | None = None) -> bool:
        """Wait until `condition(view)` is true; whether it was within `timeout` seconds (None: wait for ever).

        It is called on the client's own thread after every change: it must not block.
        """
        check_timeout(timeout)
        return self._portal.run(self._view.wait(lambda _: condition(self), timeout))

    def listen(self, changed: Changed, *, existing: bool = False) -> Callable[[], None]:
        """Call `changed(key, value)` for every change from now on, on the client's own thread, where nothing may block;
        a removed key has the value None. Of messages that came together, the last of each key is told. Returns what
        ends it.

        `existing`: what the view holds now is told first, there as well. What it raises is logged.
        """
        return self._portal.call(lambda: self._view.listen(changed, existing=existing))

    def statistics(self) -> TableViewStatistics:
        """A frozen record of what it holds and has read."""
        return self._view.statistics()

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._view.closed

    def close(self) -> None:
        """Stop following. Idempotent."""
        run_to_close(self._portal, self._view.close)

    def __del__(self) -> None:
        view = self.__dict__.get("_view")
        if view is not None and not view.finished:
            close_collected(self._portal, repr(self), view.close)

    def __repr__(self) -> str:
        return repr(self._view).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


Mapping.register(TableView)
