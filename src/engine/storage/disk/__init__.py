"""The file system and its workers: the only access to it, jobs without the interpreter lock, buffers, measurements."""
