"""The command line against a served broker."""
