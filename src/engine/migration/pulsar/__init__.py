"""Migration from Apache Pulsar, by the protocol of its clients: a topic, or all partitions of one.

Each partition has a producer of its own at the destination, whose sequence ids are made of the places of messages at
the source (`places.py`). So the destination knows how far the copy has come, and nothing is stored twice.
"""
