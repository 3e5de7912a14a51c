"""One data directory, opened by many: handles of a process, and processes of a machine."""
