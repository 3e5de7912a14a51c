"""Group commit: appends become groups, groups become writes and syncs of the active file."""
