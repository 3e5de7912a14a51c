"""Operators' requests: topics, subscriptions, segments, transactions, over HTTP or in the process."""
