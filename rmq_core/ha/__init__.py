"""Replication: a master's log as its slaves get it, in the original's protocol."""
