"""The log files of a segment: their format, opening and recovery, the index, retention and removal."""
