"""Real processes that are killed, and what their clients are promised."""
