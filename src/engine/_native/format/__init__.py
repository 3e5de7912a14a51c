"""The bytes of an entry: layout, headers, bodies, properties, checksums, sets of ranges."""
