"""Messages as Arrow columns; nothing here is called from Python but through MessageBatch."""
