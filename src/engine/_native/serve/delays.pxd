# cython: language_level=3
"""When the messages of an entry are to be delivered, read from its deliver-at column; values are not touched."""
