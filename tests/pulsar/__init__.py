"""Apache Pulsar's own client, unmodified, against a broker."""
