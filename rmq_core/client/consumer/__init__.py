"""Consumers: allocate queues within a group, pull and process messages, commit offsets."""
