"""One open segment: its producers, access to it, and the reader of its blocks."""
