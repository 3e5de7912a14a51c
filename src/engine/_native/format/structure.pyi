"""What a broker checks of an entry's inside; nothing here is called from Python but through log.entries()."""
