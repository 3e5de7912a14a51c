"""Transactions as etcd takes them, within its limits, and what their answers say.

etcd takes at most 128 operations a transaction (`--max-txn-ops`), counted along each path of nested ones: at each level
the largest number of comparisons, operations if they are met, or operations if not. So groups lie in nested
transactions, many of them in an intermediate level, and the operations of one group in levels of their own:

    the client's number is as it was            at most 20
        buckets of groups                       at most 20
            a group: its keys are as known      at most 48
                its operations, in runs         at most 40
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.errors import InvalidArgumentError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.changes import Change, Group
from engine.metadata.etcd.known import KeyState, Known, counter_state, record_state
from engine.metadata.etcd.layout import CARRIED_SIZE_MAX, Layout, encoded

TOP_MAX, BUCKET_MAX, GROUP_KEYS_MAX, RUN_MAX = 20, 20, 48, 40
GROUPS_MAX = (TOP_MAX - 1) * BUCKET_MAX
GROUP_OPS_MAX = GROUP_KEYS_MAX * RUN_MAX
READS_MAX = 100  # of keys, in one transaction
REQUEST_SIZE_MAX = 1_400_000  # of what etcd takes, 1.5 MiB, less what surrounds it


def is_revision(key: bytes, revision: int) -> Any:
    """A comparison: the key's last change has this revision; 0: it is absent."""
    return m.Compare(result=m.EQUAL, target=m.MOD, key=key, mod_revision=revision)


def read_op(key: bytes, revision: int = 0, *, keys_only: bool = False) -> Any:
    """A read of one key, at a revision or the present."""
    return m.RequestOp(request_range=m.RangeRequest(key=key, revision=revision, keys_only=keys_only))


def put_op(key: bytes, value: bytes, lease: int = 0) -> Any:
    return m.RequestOp(request_put=m.PutRequest(key=key, value=value, lease=lease))


def delete_op(key: bytes, end: bytes = b"") -> Any:
    """A deletion of one key, or of those up to `end`."""
    return m.RequestOp(request_delete_range=m.DeleteRangeRequest(key=key, range_end=end))


def nested(success: Sequence[Any], compare: Sequence[Any] = (), failure: Sequence[Any] = ()) -> Any:
    return m.RequestOp(request_txn=m.TxnRequest(compare=compare, success=success, failure=failure))


def in_runs(ops: list[Any], width: int, run: int) -> list[Any]:
    """Operations as at most `width`, nested in runs where they are more."""
    return ops if len(ops) <= width else [nested(ops[at : at + run]) for at in range(0, len(ops), run)]


class GroupRequest:
    """One group's part of a transaction. `ops`: its operations if its keys are as known."""

    def __init__(self, group: Group, layout: Layout, position: int) -> None:
        """`position`: of its first change. Raises InvalidArgumentError."""
        self.group = group
        for each in group.units:
            for _, change in each.changes:
                if isinstance(change, Change):
                    change.position = position
                    position += 1
        self.position = position  # of the next group's first
        self.records: list[str] = []  # that it changes
        self.rows: list[bytes] = []
        self.ops: list[Any] = []
        for key, last in sorted(group.last.items(), key=lambda item: _order(item[1])):
            self._add(key, last, layout)
        if len(self.ops) > GROUP_OPS_MAX:
            raise InvalidArgumentError(f"index keys of one write to etcd must be at most {GROUP_OPS_MAX}, all together")

    def _add(self, key: bytes, last: Change | int, layout: Layout) -> None:
        if isinstance(last, int):
            self.ops.append(put_op(key, b"%d" % last))
            return
        before = self.group.before[key]
        old = layout.rows(last.key, before.indexes) if before.revision else []
        new = layout.rows(last.key, last.indexes) if last.value is not None else []
        self.records.append(last.key)
        self.rows += dict.fromkeys((*old, *new))
        if last.value is None:
            if before.revision:
                self.ops.append(delete_op(key))
        else:
            lease = last.session or 0
            self.ops.append(put_op(key, encoded(last.stored()), lease))
            if new:
                row = encoded(last.row(carries=len(last.value) * len(new) <= CARRIED_SIZE_MAX))
                self.ops += [put_op(key, row, lease) for key in new]
        self.ops += [delete_op(row) for row in dict.fromkeys(old) if row not in new]

    def op(self) -> Any:
        """The nested transaction."""
        before = self.group.before
        compare = [is_revision(key, state.revision) for key, state in before.items()]
        return nested(in_runs(self.ops, GROUP_KEYS_MAX, RUN_MAX), compare, [read_op(key) for key in before])

    def applied(self, revision: int, known: Known) -> None:
        """It was done: learn the states behind it."""
        for key, last in self.group.last.items():
            known.put(key, KeyState(revision, last=last) if isinstance(last, int) else last.state(revision))

    def refused(self, answer: Any, layout: Layout, known: Known) -> None:
        """It was not done: learn the true states from the answer."""
        for key, response in zip(self.group.before, answer.responses, strict=True):
            learn(key, response.response_range, layout, known)


def _order(last: Change | int) -> int:
    return last.position if isinstance(last, Change) else -1


def learn(key: bytes, answer: Any, layout: Layout, known: Known) -> KeyState:
    """Learn a key's state from the answer to its read."""
    known.forget(key)
    if not answer.kvs:
        state = KeyState(0)
    elif layout.is_record(key):
        state = record_state(answer.kvs[0], layout.key_of(key))
    else:
        state = counter_state(answer.kvs[0])
    known.put(key, state)
    return state


def in_buckets(ops: list[Any]) -> list[Any]:
    """The parts of groups below a level that holds at most TOP_MAX with the client's number."""
    return in_runs(ops, TOP_MAX - 1, BUCKET_MAX)


def in_order(responses: Sequence[Any], count: int) -> Iterator[Any]:
    """The answers to groups that in_buckets() has arranged."""
    if count <= TOP_MAX - 1:
        for response in responses:
            yield response.response_txn
        return
    for bucket in responses:
        for response in bucket.response_txn.responses:
            yield response.response_txn
