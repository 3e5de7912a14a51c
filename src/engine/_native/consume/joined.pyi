"""One column of many slices; nothing here is called from Python but through MessageBatch."""
