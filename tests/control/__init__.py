"""Topics, layouts, assignments and transactions: the control plane on a segment host in memory."""
