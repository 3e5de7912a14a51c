"""Segments, their files and cursors, on disks that forget and fail."""
