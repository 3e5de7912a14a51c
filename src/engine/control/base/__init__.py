"""The base of control: ports, configuration, records of topics, live brokers and leadership."""
