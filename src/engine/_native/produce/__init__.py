"""From values to sealed entries: hashing, columns, builders, buckets, the batcher."""
