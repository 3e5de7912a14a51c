"""The proxy: external clients reach every broker through one address; entries are never decoded. Loop thread only."""
