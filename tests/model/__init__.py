"""Names, layouts, positions, records: values without any state."""
