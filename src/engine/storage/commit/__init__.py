"""Group commit: the appends of one segment become groups, and the groups become durable in order."""
