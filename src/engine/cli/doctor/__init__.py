"""`engine doctor`: what of a machine, a directory, a configuration or a server would fail in production."""
