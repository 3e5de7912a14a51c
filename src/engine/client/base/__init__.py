"""Options, schemas, compression, positions and memory: values that need no connection."""
