"""Consumers of one topic: attachments to segments, credit, acknowledgements, redelivery."""
