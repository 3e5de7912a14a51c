"""Hostile bytes for every decoder, command, request and file."""
