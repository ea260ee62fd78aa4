"""Delayed messages at the broker: delay levels, and the timer messages of RocketMQ 5."""
