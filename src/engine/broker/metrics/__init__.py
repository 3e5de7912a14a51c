"""What a broker counts and serves at /metrics, and whether it is healthy."""
