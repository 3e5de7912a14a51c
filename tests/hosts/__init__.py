"""Brokers on hosts of their own, which are network namespaces of this machine, and partitions between them."""
