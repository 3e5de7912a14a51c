"""Transactions on the client's side: the coordinator's calls, one transaction's scope, prefetching."""
