"""Messages of Apache Pulsar's protocol, to entries and back."""
