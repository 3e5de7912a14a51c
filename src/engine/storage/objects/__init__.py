"""Object storage: the store behind a URL, and the write-ahead log of a broker session (docs/formats/objects.md)."""
