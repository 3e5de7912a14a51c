"""Apache Pulsar's protocol on the broker's port."""
