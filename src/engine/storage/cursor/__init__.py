"""Records of segments in the metadata store: cursors of subscriptions, and visibility of transactions."""
