"""Benchmarks beside the real Apache RocketMQ: ``make bench`` prints the table of docs/performance.md."""
