"""Clusters under random faults on a virtual clock, and planted bugs that must be found."""
