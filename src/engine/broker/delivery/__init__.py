"""Subscriptions in an open segment: consumers, dispatchers, acknowledgements, redelivery."""
