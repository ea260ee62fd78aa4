"""Committed offsets of a store at rest: those of consumer groups and of delay levels, shown and set."""
