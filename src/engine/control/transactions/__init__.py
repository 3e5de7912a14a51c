"""The transaction coordinator, and the records of headers and operations in the metadata store."""
