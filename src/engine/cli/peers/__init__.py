"""Other brokers that `engine perf compare` measures: Kafka, Redis streams, NATS JetStream, each by its own client.

A client is loaded when a URL asks for it. Each peer is used in the cheapest form that its documentation gives.
"""
