"""The file system and its workers: the only door to it, jobs without the interpreter lock, buffers, measures."""
