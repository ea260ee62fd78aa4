"""Reads of what other layouts than the classic one have: RocksDB, and the logs of single queues."""
