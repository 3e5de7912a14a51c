"""Planned reads: a view of a topic's segments, and readers of given offsets, from broker or local files."""
