"""Copies of topics: what they keep, and that nothing is lost or doubled when they are interrupted."""
