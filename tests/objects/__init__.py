"""Object storage against a real S3 server."""
