"""Decisions as pure functions: when to split or merge, which consumer reads what, where a segment lies."""
