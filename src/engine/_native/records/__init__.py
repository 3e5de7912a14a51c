"""Records of the metadata store in memory: sorted keys, changes, the checksum of each."""
