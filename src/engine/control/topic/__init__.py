"""Topic controllers, and what follows topics: elections, watches, lists, statistics."""
