"""Connections to brokers: one per URL, multiplexed, with deadlines and re-connection."""
