"""What is kept of topics at the client: the latest value of each key, and replies to requests."""
