"""The public API over an embedded and over a served engine."""
