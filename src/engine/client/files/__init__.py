"""What a client reads of a segment around its broker: log files on the same machine, objects of rolled files."""
