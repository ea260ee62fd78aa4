"""Replication of the CommitLog from a master to its slaves, in RocketMQ's HA protocol."""
