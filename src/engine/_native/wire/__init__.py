"""Frames: cut out of what a connection receives, and put together to be sent."""
