"""The Spark connector on a Spark of its own."""
