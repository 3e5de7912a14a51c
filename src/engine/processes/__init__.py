"""A server of several processes on one data directory: the store and supervision in one, brokers in the others."""
