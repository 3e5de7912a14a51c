"""What the metadata store keeps beside the logs: cursors of subscriptions, and visibility of transactions."""
