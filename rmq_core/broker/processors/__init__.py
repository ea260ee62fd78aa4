"""Handlers of the broker's request codes, one module for each group of codes, as RocketMQ's processors."""
