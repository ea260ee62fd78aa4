"""The phases of a verification: plan, scan, comparison of queues and Index, small files."""
