"""Lite topics of RocketMQ 5.5 (RIP-83): many small children of one topic, each a light queue of its own."""
