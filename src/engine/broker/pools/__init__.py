"""Everything that is bounded, each with its limit, and the meters."""
