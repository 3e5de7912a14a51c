"""Batches as columns for others; nothing here is called from Python but through MessageBatch."""
