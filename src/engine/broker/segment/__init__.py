"""One open segment: its producers, who may append, and the reader of its blocks."""
