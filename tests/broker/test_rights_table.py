"""The table of rights: nothing is missing from it, and what it says is what happens, for each kind of principal."""

from __future__ import annotations

from engine.broker.rights.table import COMMANDS, OPERATIONS
from engine.broker.session.handlers import HANDLERS
from engine.model.admin_operations import OPERATIONS as ROWS


def test_each_command_that_a_broker_takes_is_in_the_table():
    assert set(COMMANDS) == set(HANDLERS)


def test_each_operation_of_the_admin_api_is_in_the_table():
    assert set(OPERATIONS) == {row.name for row in ROWS if not row.without_token}
