"""Operators' door: the administration service, its HTTP API, settings that change at run time."""
