"""Duplicate detection: which sequence ids of each producer a segment has already stored, also across reshapes."""
