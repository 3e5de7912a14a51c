"""Penetration tests: a role that holds a weak right in one namespace tries everything against another namespace."""
