"""Several brokers on one metadata store."""
