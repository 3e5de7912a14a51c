"""Frames, and the streams that carry them."""
