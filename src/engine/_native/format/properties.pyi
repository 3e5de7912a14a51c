"""A message's properties; nothing here is called from Python."""
