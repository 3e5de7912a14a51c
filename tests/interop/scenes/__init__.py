"""Scenarios: each is one program that runs unchanged against a broker of ours and against Apache Pulsar."""
