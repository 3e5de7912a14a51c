"""Facts and pure operations that all rooms share: names, hash ranges, layouts, positions, schemas."""
