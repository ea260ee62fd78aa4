"""Replay: sends messages of a store at rest to a running cluster, in order and at least once."""
