"""The coordinator of a scripted broker: transactions are a state each, and answers get lost on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.errors import EngineError, TransactionConflictError, TransactionNotFoundError
from engine.wire.commands import Command

DEADLINE_MS = 1 << 60


class FakeTransactions(dict[str, str]):
    """Their states. `marks`: of those that have ended; `leave_open`: what is to be committed behind its sends.

    `holding`: that is answered by release() only. `refusal`: of prefetched ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[str, int | None] = {}
        self.leave_open = False
        self.holding = False
        self.refusal: EngineError | None = None
        self.held: list[Callable[[], object]] = []

    def release(self) -> None:
        """Do, and answer, what was held."""
        self.holding = False
        for end in self.held:
            end()


class FakeCoordinator:
    """What of a connection has to do with transactions."""

    broker: Any
    stream: Any
    answer: Any
    error: Any

    def is_lost(self, command: Command) -> bool:
        """Whether the connection breaks before this is done."""
        if command in self.broker.lose_requests:
            self.broker.lose_requests.remove(command)
            self.stream.abort()
            return True
        return False

    def new_txn(self, header: dict[str, Any], payload: memoryview) -> None:
        states = self.broker.transactions
        if header.get("count") is not None and states.refusal is not None:
            self.error(header, states.refusal)
            return
        begun = [f"{len(states) + 1 + i:016x}" for i in range(header.get("count") or 1)]
        states.update(dict.fromkeys(begun, "OPEN"))
        self.standing(header, *begun)

    def end_txn(self, header: dict[str, Any], payload: memoryview) -> None:
        states = self.broker.transactions
        if header.get("sent") is not None and states.holding:
            states.held.append(lambda: self.end_txn(header, payload))
            return
        wanted = {"commit": "COMMITTED", "abort": "ABORTED"}[header["action"]]
        if header.get("sent") is not None and states.leave_open:
            self.answer(header, result={"state": "OPEN"})
            return
        if states.get(header["id"]) == "OPEN":
            states[header["id"]] = wanted
            states.marks[header["id"]] = header.get("mark")
        if Command.END_TXN in self.broker.lose_answers:
            self.broker.lose_answers.remove(Command.END_TXN)
            self.stream.abort()
        elif header["id"] not in states:
            self.error(header, TransactionNotFoundError("no such transaction"))
        elif states[header["id"]] != wanted:
            self.error(header, TransactionConflictError("it has ended the other way"))
        else:
            self.answer(header, result={"state": wanted})

    def txn_state(self, header: dict[str, Any], payload: memoryview) -> None:
        self.standing(header, header["id"])

    def standing(self, header: dict[str, Any], ident: str, *more: str) -> None:
        state = self.broker.transactions.get(ident)
        if state is None:
            self.error(header, TransactionNotFoundError("no such transaction"))
            return
        self.answer(header, result={"id": ident, "state": state, "deadline_ms": DEADLINE_MS, "accepted": None,
                                    "mark": self.broker.transactions.marks.get(ident), "more": list(more)})  # fmt: skip
