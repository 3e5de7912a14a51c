"""The blocking `TopicWatch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self, overload

from engine.aio.portal import Portal
from engine.client import AsyncTopicWatch, TopicsChanged
from engine.errors import AlreadyClosedError
from engine.sync.closing import close_collected, run_to_close


class TopicWatch:
    """Follows the topics of a namespace. Made by `client.watch_topics()`; iterate it, with `with`.

    The first TopicsChanged has every existing topic as `added`. Changes between two calls come as one.
    """

    def __init__(self, portal: Portal, watch: AsyncTopicWatch) -> None:
        self._portal = portal
        self._watch = watch.disown()

    @property
    def namespace(self) -> str:
        """The "tenant/namespace" it follows."""
        return self._watch.namespace

    @property
    def topics(self) -> list[str]:
        """The present topics, as far as this client knows, sorted."""
        return self._watch.topics

    @overload
    def next_change(self, timeout: None = None) -> TopicsChanged: ...
    @overload
    def next_change(self, timeout: float | None) -> TopicsChanged | None: ...
    def next_change(self, timeout: float | None = None) -> TopicsChanged | None:
        """The changes since the last call; None when there were none within `timeout` seconds (None: wait for ever).

        Raises AlreadyClosedError when the watch is closed, also meanwhile; InvalidArgumentError (`timeout`).
        """
        return self._portal.run(self._watch.next_change(timeout))

    def __iter__(self) -> Iterator[TopicsChanged]:
        """Every change, until the watch is closed."""
        while True:
            try:
                changed = self.next_change()
            except AlreadyClosedError:
                return
            yield changed

    def close(self) -> None:
        """Stop following; a call that waits on another thread raises AlreadyClosedError. Idempotent."""
        run_to_close(self._portal, self._watch.close)

    def __del__(self) -> None:
        watch = self.__dict__.get("_watch")
        if watch is not None and not watch.finished:
            close_collected(self._portal, repr(self), watch.close)

    def __repr__(self) -> str:
        return repr(self._watch).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
