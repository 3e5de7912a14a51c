"""Other brokers: membership, connections to them, calls routed to the owner of a segment. Loop thread only."""
