"""Jobs on threads that need no interpreter lock: writes, syncs, commits of a database."""
