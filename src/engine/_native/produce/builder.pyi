"""The open batch of one bucket; nothing here is called from Python."""
