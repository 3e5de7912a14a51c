"""Fake clock, forgetful disk, simulated network and cluster, history checker: for tests of programs and of Engine."""
