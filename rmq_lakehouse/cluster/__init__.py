"""Exports of a running cluster: messages are pulled from its brokers, progress is kept by queue in the tables."""
