"""Checks the inside of an entry; nothing here is called from Python but through log.entries()."""
