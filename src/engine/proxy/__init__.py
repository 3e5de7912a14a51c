"""The proxy: clients outside reach every broker through one address. Bytes pass through, entries are never decoded."""
