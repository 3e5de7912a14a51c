"""The native modules, beside plain models of the same."""
