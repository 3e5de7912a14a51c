"""Files, threads, turns and the portal: what waits, and what is awaited."""
