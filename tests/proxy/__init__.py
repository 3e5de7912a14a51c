"""The proxy, and the client's tests once more through it."""
