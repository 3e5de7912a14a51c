"""What all of control stands on: ports, configuration, records of topics, brokers and leadership."""
