"""Whole data directories of earlier versions."""
