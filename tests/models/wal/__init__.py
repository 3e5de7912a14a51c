"""The write-ahead log of objects: one per broker session, fenced by conditional PUTs (docs/formats/objects.md)."""
