"""A topic as a client sees it: its layout kept current, lists of topics, declared schemas."""
