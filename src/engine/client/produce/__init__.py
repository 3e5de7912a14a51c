"""Producers: batches per segment, what is in flight, and what follows a change of layout."""
