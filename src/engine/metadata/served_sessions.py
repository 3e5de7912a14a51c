"""`ServedSessions`: the sessions of a metadata service's clients; they end when nothing is heard of their holders."""

from __future__ import annotations

import asyncio
import logging

from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError
from engine.metadata.local import LocalStore
from engine.metadata.store import MetadataStore, OutcomeUnknownError, Session

log = logging.getLogger(__name__)

SESSION_S_MAX = 60.0
SESSION_S_MIN = 0.1
_AGAIN_S_MIN, _AGAIN_S_MAX = 0.1, 5.0  # until a deletion that failed is tried again


class ServedSessions:
    """The sessions of all clients, by id; each ends when nothing was heard of it for its timeout."""

    def __init__(self, store: MetadataStore, timeout_max: float) -> None:
        self._store = store
        self._timeout_max = timeout_max
        self._sessions: dict[int, Session] = {}
        self._ending: dict[int, Session] = {}  # until their records are deleted
        self._pauses: dict[int, float] = {}  # of ending sessions: seconds before the last attempt
        self._timers: dict[int, asyncio.TimerHandle] = {}  # until a session expires, or its deletion is tried again
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def adopt(self) -> None:
        """Sessions that the store still has records of: their holders may be alive."""
        if isinstance(self._store, LocalStore):
            for ident in self._store.leftover_sessions():
                self._sessions[ident] = self._store.serve_session(self._timeout_max, ident)
                self._renew(ident, self._timeout_max)

    async def open(self, timeout: float) -> int:
        """The id of a new session. Raises InvalidArgumentError."""
        if not SESSION_S_MIN <= timeout <= self._timeout_max:
            raise InvalidArgumentError(
                f"the timeout of a session must be {SESSION_S_MIN:g} to {self._timeout_max:g} s, got {timeout:g}"
            )
        if isinstance(self._store, LocalStore):
            session: Session = self._store.serve_session(timeout)
        else:
            session = await self._store.session(timeout)
        self._sessions[session.id] = session
        self._renew(session.id, timeout)
        return session.id

    def get(self, ident: int) -> Session:
        """A session that lives. Raises AlreadyClosedError."""
        session = self._sessions.get(ident)
        if session is None:
            raise AlreadyClosedError(f"the metadata session {ident} has ended")
        return session

    async def refresh(self, ident: int, timeout: float) -> None:
        """The holder was heard of. Raises AlreadyClosedError."""
        session = self.get(ident)
        self._renew(ident, min(timeout, self._timeout_max))
        await session.refresh()

    def _renew(self, ident: int, timeout: float) -> None:
        self._cancel(ident)
        self._timers[ident] = asyncio.get_running_loop().call_later(timeout, self._expire, ident)

    def _cancel(self, ident: int) -> None:
        timer = self._timers.pop(ident, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, ident: int) -> None:
        log.info("the metadata session %s has expired", ident)
        self._try_to_end(ident)

    def _try_to_end(self, ident: int) -> None:
        task = asyncio.get_running_loop().create_task(self._end(ident))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, ident: int) -> None:
        try:
            await self.end(ident)
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the records of the metadata session %s were not deleted: %s", ident, e)

    async def end(self, ident: int) -> None:
        """End a session and delete its records. Idempotent.

        Raises the store's errors; the session has ended for its holder then, and the deletion is tried again until it
        is done.
        """
        self._cancel(ident)
        if ident in self._sessions:
            self._ending[ident] = self._sessions.pop(ident)
        session = self._ending.get(ident)
        if session is None:
            return
        try:
            await session.close()
        except BaseException:
            self._end_later(ident)
            raise
        self._cancel(ident)
        self._ending.pop(ident, None)
        self._pauses.pop(ident, None)

    def _end_later(self, ident: int) -> None:
        if ident not in self._ending:
            return  # another attempt has succeeded, or it is left
        self._cancel(ident)
        pause = self._pauses[ident] = min(2 * self._pauses.get(ident, _AGAIN_S_MIN / 2), _AGAIN_S_MAX)
        self._timers[ident] = asyncio.get_running_loop().call_later(pause, self._try_to_end, ident)

    def leave(self) -> None:
        """Count no more; the next service goes on. A store that is not local has them itself.

        Sessions that are ending remain with a local store, which tries to delete their records when it is closed.
        """
        for ident in list(self._timers):
            self._cancel(ident)
        for session in self._sessions.values():
            if isinstance(self._store, LocalStore):
                self._store.leave_session(session)
        self._sessions.clear()
        self._ending.clear()
        self._pauses.clear()
