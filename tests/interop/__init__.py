"""Apache Pulsar's Java clients against a broker."""
