"""Transactions at the broker: half messages are stored, committed or rolled back, and checked with their producers."""
