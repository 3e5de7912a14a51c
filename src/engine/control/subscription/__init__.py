"""Subscriptions of a topic: sessions of consumers, assignment of segments, drain gating."""
