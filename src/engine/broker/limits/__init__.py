"""Limits of topics, namespaces, tenants and roles: rates by token buckets, counts, and what is refused above them."""
