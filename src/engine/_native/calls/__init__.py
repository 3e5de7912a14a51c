"""Calls that have started: what a call returns whose work goes on whether it is awaited or not."""
