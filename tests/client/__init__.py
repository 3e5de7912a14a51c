"""The client against scripted brokers."""
