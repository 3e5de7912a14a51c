"""The table of rights: nothing is missing from it. What it says is tried in test_rights_matrix.py."""

from __future__ import annotations

from engine.broker.rights.table import COMMANDS, OPERATIONS
from engine.broker.session.handlers import HANDLERS
from engine.model.admin_methods import AdminMethods
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.sync.admin import Admin


def test_each_command_that_a_broker_takes_is_in_the_table():
    assert set(COMMANDS) == set(HANDLERS)


def test_each_operation_of_the_admin_api_is_in_the_table():
    assert set(OPERATIONS) == {row.name for row in ROWS if not row.without_token}


def test_each_method_of_admin_in_both_forms_is_in_the_table():
    for form in (AdminMethods, Admin):
        methods = {name for name in vars(form) if not name.startswith("_")}
        assert methods - {"close"} <= set(OPERATIONS), form
