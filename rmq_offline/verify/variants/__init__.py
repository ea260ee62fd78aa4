"""Checks of what other layouts than the classic one have: DLedger, batch queues, RocksDB, tiers, controllers."""
