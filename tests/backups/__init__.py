"""Backups of data directories that are served."""
