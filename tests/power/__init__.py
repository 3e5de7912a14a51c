"""A file system whose power is cut."""
