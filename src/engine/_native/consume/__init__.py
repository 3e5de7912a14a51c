"""From entries to messages: batches, the receive queue, Arrow."""
